"""Foreign servers: how they are named, asked and read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from client.analysis.gates import FAILED, VALID, judge
from client.analysis.metrics import measure
from client.load.http.dialects import Native, OpenAI, counted
from client.load.http.target import parse_target
from client.load.play import play
from client.load.servers.probing import adapted, served_words
from client.workloads.spec import SpecError
from client.workloads.words import embedded_words
from client.workloads.workload_file import Request
from tests.client.conftest import started, workload


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("foreign")
    command = (sys.executable, "-m", "tests.client.foreignserver")
    with started(command, "foreign", folder / "log", 60.0) as server:
        yield server.target.url.removeprefix("http://")


@pytest.mark.parametrize("scheme", ["openai+http", "openai-chat+http", "tgi+http"])
@pytest.mark.parametrize("stream", [True, False])
def test_foreign_servers_are_played_and_their_own_counts_believed(
    foreign: str, scheme: str, stream: bool
) -> None:
    from dataclasses import replace

    target = replace(parse_target(f"x={scheme}://{foreign}"), stream=stream)
    run = play(workload(), target)
    assert [o.failure for o in run.outcomes] == [None] * 20
    assert [o.output_tokens for o in run.outcomes] == [o.requested_tokens for o in run.outcomes]
    if not (stream and scheme.startswith("tgi")):  # TGI's stream does not state the prompt's length
        assert {o.prompt_tokens for o in run.outcomes} == {2}
    assert all((o.first_s is not None) == stream for o in run.outcomes)
    if stream:
        assert all(sum(k for _, k in o.deliveries) == o.output_tokens for o in run.outcomes)
    # On a busy machine client and server may be late; everything else must hold.
    late = ("dispatch lag", "backlog")
    gates = [g for g in judge(run, measure(run)).gates if g.name not in late]
    assert {g.verdict for g in gates} == {VALID}


def test_prompts_are_made_of_words_that_are_one_token_of_the_server(foreign: str) -> None:
    known = embedded_words()
    words = served_words(parse_target(f"tgi+http://{foreign}"))
    assert words.further == tuple(w for w in known.further if len(w) != 6)
    # the first line has another id than the same word later: this vocabulary begins with a space
    assert set(words.starts) == {w.strip() for w in words.further} & set(known.starts)


@pytest.mark.parametrize("address", ["{}/pairs", "127.0.0.1:9"])
def test_a_server_that_does_not_tell_its_tokens_gets_words_of_the_embedded_vocabulary(
    foreign: str, address: str
) -> None:
    assert served_words(parse_target(f"http://{address.format(foreign)}")) is embedded_words()


def test_only_the_extras_that_a_server_accepts_are_used(foreign: str) -> None:
    """So that answers are as long as was asked, and counted by the server with every event."""
    all_of_it = adapted(parse_target(f"openai+http://{foreign}?model=m"))
    body = all_of_it.dialect.body(Request(0.0, "p", 1, 7, "immediate", None, 9), stream=True)
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    some = adapted(parse_target(f"openai+http://{foreign}/pairs?model=m"))
    assert isinstance(some.dialect, OpenAI)
    assert some.dialect.extras == ("continuous_usage_stats",)


@pytest.mark.parametrize("known", [True, False])
def test_tokens_are_counted_where_an_event_holds_several(foreign: str, *, known: bool) -> None:
    target = parse_target(f"openai+http://{foreign}/pairs?model=m")
    run = play(workload(output_tokens="fixed:7"), adapted(target) if known else target)
    assert [o.failure for o in run.outcomes] == [None] * 20
    for o in run.outcomes:
        assert len(o.deliveries) == 4
        assert sum(tokens for _, tokens in o.deliveries) == 7
        assert o.first_s == o.deliveries[0][0]


@given(total=st.integers(1, 300), n=st.integers(1, 80))
def test_tokens_spread_over_events_are_all_there_and_the_first_is_in_the_first(
    total: int, n: int
) -> None:
    made, unplaced = counted([(float(k), 1) for k in range(n)], [(9e9, total)], total)
    assert unplaced == abs(total - n)
    assert sum(tokens for _, tokens in made) == total
    assert made[0][0] == 0.0
    assert max(t for _, t in made) - min(t for _, t in made) <= 1


def test_a_refusal_is_reported_in_the_servers_words(foreign: str) -> None:
    run = play(workload(requests=3), parse_target(f"openai+http://{foreign}?model=gone"))
    verdict = judge(run, measure(run))
    assert verdict.word == FAILED
    assert "the model does not exist" in verdict.reason


def test_the_query_goes_into_every_body_as_json() -> None:
    target = parse_target("v=openai+http://host:8000?model=gpt2&ignore_eos=true&temperature=0")
    assert target.name == "v"
    assert target.url == "http://host:8000"
    request = Request(0.0, "p", 1, 7, "deferred", 5.0, 9)
    body = target.dialect.body(request, stream=True)
    assert body["ignore_eos"] is True
    assert body["temperature"] == 0
    assert body["max_tokens"] == 7
    assert body["service_tier"] == "flex"
    assert isinstance(target.dialect, OpenAI)


def test_deferred_requests_carry_their_class_and_deadline_to_this_projects_api() -> None:
    body = Native().body(Request(0.0, "p", 1, 7, "deferred", 5.0, 9), stream=True)
    assert body == {
        "prompt": "p", "num_tokens": 7, "seed": 9, "stream": True, "class": "deferred",
        "deadline_s": 5.0,
    }  # fmt: skip
    plain = Native().body(Request(0.0, "p", 1, 7, "immediate", None, 9), stream=False)
    assert plain == {"prompt": "p", "num_tokens": 7, "seed": 9}


@pytest.mark.parametrize(
    "text", ["ftp://h", "h:8500", "openai+ftp://h", "grpc+http://h", "http://", "http://h:notaport"]
)
def test_a_target_that_cannot_be_understood_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SpecError, match="SCHEME one of"):
        parse_target(text)


def test_a_server_that_names_no_model_asks_for_one(foreign: str) -> None:
    with pytest.raises(SpecError, match=r"add \?model=NAME"):
        parse_target(f"openai+http://{foreign}/elsewhere")


def test_the_foreign_server_of_these_tests_answers_as_the_official_client_expects(
    foreign: str,
) -> None:
    """So that what the client is tested on is what real servers send."""
    import openai

    official = openai.OpenAI(base_url=f"http://{foreign}/v1", api_key="none")
    with official.completions.create(
        model="m", prompt="a b", max_tokens=3, stream=True, stream_options={"include_usage": True}
    ) as events:
        seen = list(events)
    official.close()
    assert seen[-1].usage is not None
    assert seen[-1].usage.completion_tokens == 3
    assert "".join(c.text for e in seen for c in e.choices) == " a a a"
    assert requests.get(f"http://{foreign}/v1/models", timeout=60).json()["data"][0]["id"] == "m"


def test_a_server_that_wants_a_key_is_shown_the_first_that_is_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (sys.executable, "-m", "tests.client.foreignserver", "--locked")
    with started(command, "locked", tmp_path / "log", 60.0) as server:
        address = server.target.url.removeprefix("http://")
        monkeypatch.setenv("API_KEY", "sesame")
        with pytest.raises(SpecError, match=r"401.* its key as API_KEY_X_1 to"):
            parse_target(f"x-1=openai+http://{address}")
        monkeypatch.setenv("API_KEY_X_1", "sesame,another")
        run = play(workload(), parse_target(f"x-1=openai+http://{address}"))
    assert [o.failure for o in run.outcomes] == [None] * 20


def test_a_key_goes_to_no_target_that_it_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "own,another")
    monkeypatch.setenv("API_KEY_B", "theirs")
    sent = {
        text: parse_target(text).headers.get("Authorization")
        for text in ("http://a", "a=tgi+http://h", "b=tgi+http://h", "b=http://h")
    }
    assert list(sent.values()) == ["Bearer own", None, "Bearer theirs", "Bearer theirs"]
