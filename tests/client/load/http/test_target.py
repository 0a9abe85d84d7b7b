"""How servers are named, asked and read: this project's, over every API that others have, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.analysis.gates import VALID, judge
from client.analysis.metrics import measure
from client.load.http.dialects import Native, OpenAI, counted
from client.load.http.target import parse_target
from client.load.play import play
from client.load.servers.probing import adapted, served_words
from client.workloads.prompts import embedded_words
from client.workloads.spec import SpecError
from client.workloads.workload_file import Request
from tests.client.conftest import workload
from tests.support.process import closed_at_end, serving
from tests.support.upstream import ScriptedUpstream


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server that official clients understand, and that asks for a key."""
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, hash_model={"endless": 1, "step_s": 0.002}, api_key="sesame") as server:
        yield server.url.removeprefix("http://")


@pytest.mark.parametrize("scheme", ["http", "openai+http", "openai-chat+http", "tgi+http"])
@pytest.mark.parametrize("stream", [True, False])
def test_servers_are_played_and_their_own_counts_believed(
    address: str, monkeypatch: pytest.MonkeyPatch, scheme: str, stream: bool
) -> None:
    monkeypatch.setenv("API_KEY_X_1", "sesame,another")
    target = adapted(parse_target(f"x-1={scheme}://{address}"))
    run = play(workload(), replace(target, stream=stream))
    assert [o.failure for o in run.outcomes] == [None] * 20
    assert [o.output_tokens for o in run.outcomes] == [o.requested_tokens for o in run.outcomes]
    if scheme == "openai+http":
        lengths = [len(r.prompt) for r in run.workload.requests]  # its tokens are bytes
        assert [o.prompt_tokens for o in run.outcomes] == lengths
    assert all((o.first_s is not None) == (stream or scheme == "http") for o in run.outcomes)
    if stream:
        assert all(sum(k for _, k in o.deliveries) == o.output_tokens for o in run.outcomes)
    # On a busy machine client and server may be late; everything else must hold.
    gates = [g for g in judge(run, measure(run)).gates if not g.voids and g.name != "backlog"]
    assert {g.verdict for g in gates} == {VALID}, gates


def test_a_server_that_wants_a_key_says_which_variable_is_for_it(address: str) -> None:
    with pytest.raises(SpecError, match=r"401.* its key as API_KEY_X_1 to"):
        parse_target(f"x-1=openai+http://{address}")


def test_a_vocabulary_without_words_leaves_those_of_the_embedded_one(address: str) -> None:
    for silent in (address, "127.0.0.1:9"):
        assert served_words(parse_target(f"http://{silent}"), "words") is embedded_words()


def test_only_the_extras_that_a_server_accepts_are_used() -> None:
    """So that answers are as long as was asked, and counted by the server with every event."""

    def answer(asked: str, body: bytes) -> tuple[int, object]:
        return (400, {"error": "ignore_eos is not known"}) if b"ignore_eos" in body else (200, {})

    server = closed_at_end(ScriptedUpstream(answers=answer).start())
    named = parse_target(f"openai+{server.url}?model=m")
    some, whole = adapted(named), adapted(named, stream=False)
    assert (some.stream, whole) == (True, replace(some, stream=False))
    assert isinstance(some.dialect, OpenAI)
    assert some.dialect.extras == ("continuous_usage_stats",)
    body = some.dialect.body(Request(0.0, "p", 1, 7, "immediate", None, 9), stream=True)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "ignore_eos" not in body


@given(total=st.integers(1, 300), n=st.integers(1, 80))
def test_tokens_spread_over_events_are_all_there_and_the_first_is_in_the_first(
    total: int, n: int
) -> None:
    made, unplaced = counted([(float(k), 1) for k in range(n)], [(9e9, total)], total)
    assert unplaced == abs(total - n)
    assert sum(tokens for _, tokens in made) == total
    assert made[0][0] == 0.0
    assert max(t for _, t in made) - min(t for _, t in made) <= 1


def test_counts_in_every_event_are_used_as_they_are() -> None:
    events, stated = [(1.0, 1), (2.0, 1), (3.0, 1)], [(1.0, 2), (2.0, 2), (3.0, 7), (4.0, 7)]
    for told in (stated, stated[:-1]):  # some servers state the last one again
        assert counted(events, told, 7) == ([(1.0, 2), (3.0, 5)], 0)


def test_bodies_carry_the_fields_of_the_query_as_json_and_whether_a_request_is_deferred() -> None:
    asked = Request(0.0, "p", 1, 7, "deferred", 5.0, 9)
    target = parse_target("v=openai+http://host:8000?model=gpt2&ignore_eos=true&temperature=0")
    assert (target.name, target.url) == ("v", "http://host:8000")
    body = target.dialect.body(asked, stream=True)
    expected = {"ignore_eos": True, "temperature": 0, "max_tokens": 7, "service_tier": "flex"}
    assert expected.items() <= body.items()
    assert Native().body(asked, stream=True) == {
        "prompt": "p", "num_tokens": 7, "seed": 9, "stream": True, "class": "deferred",
        "deadline_s": 5.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["ftp://h", "h:8500", "openai+ftp://h", "grpc+http://h", "http://", "http://h:notaport"]
)
def test_a_target_that_cannot_be_understood_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SpecError, match="SCHEME one of"):
        parse_target(text)


def test_a_key_goes_to_no_target_that_it_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "own,another")
    monkeypatch.setenv("API_KEY_B", "theirs")
    sent = {
        text: parse_target(text).headers.get("Authorization")
        for text in ("http://a", "a=tgi+http://h", "b=tgi+http://h", "b=http://h")
    }
    assert list(sent.values()) == ["Bearer own", None, "Bearer theirs", "Bearer theirs"]
