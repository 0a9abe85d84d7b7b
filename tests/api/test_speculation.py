"""`--speculate` over HTTP: the answers are those without it, also where a stop string ends within
accepted drafts, and statistics, metrics and headers tell the drafts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from scheduling.prediction.predictor import Predictor
from serving.config import Config
from tests.api.conftest import serving
from tests.api.openai.test_openai import expected
from tests.examples import examples
from tests.support.openai_calls import Json, chat, chunks, complete

MOST = 4


@pytest.fixture(scope="module")
def speculating() -> Iterator[FlaskClient]:
    """Without a learnt step time: how busy the machine is would decide how many drafts are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "seconds", lambda *_: None)
        with serving(Config(mode="dynamic", speculate=MOST)) as client:
            yield client


@given(
    prompt=st.text(min_size=1, max_size=20),
    n=st.integers(1, 60),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop_at=st.tuples(st.integers(0, 40), st.integers(1, 4)),
)
@examples(40)
def test_a_stop_string_within_accepted_drafts_ends_the_answer_as_it_does_without(
    speculating: FlaskClient, prompt: str, n: int, seed: int | None, stop_at: tuple[int, int]
) -> None:
    plain, _, _ = expected(prompt.encode(), n + 5, seed, None)
    stop = plain[stop_at[0] : sum(stop_at)] or None
    text, tokens, finish = expected(prompt.encode(), n, seed, stop)
    fields: Json = {"prompt": prompt, "max_tokens": n, "stop": stop}
    fields |= {"temperature": 0} if seed is None else {"seed": seed}
    whole = complete(speculating, **fields)
    (choice,) = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, finish)
    assert whole["usage"]["completion_tokens"] == tokens
    parts = chunks(speculating, **fields)
    assert "".join(part["choices"][0]["text"] for part in parts) == text


def test_statistics_metrics_headers_and_the_live_page_tell_the_drafts(
    speculating: FlaskClient,
) -> None:
    speculating.post("/stats/reset")
    asked = {"inputs": "drafts", "parameters": {"max_new_tokens": 40, "seed": 1}}
    answer = speculating.post("/generate", json=asked)
    accepted, rejected = (
        int(answer.headers[f"x-{kind}-drafts"]) for kind in ("accepted", "rejected")
    )
    assert accepted > 0
    assert rejected > 0
    stats: Json = speculating.get("/stats").json or {}
    assert stats["drafts"] == {"accepted": accepted, "rejected": rejected}
    assert stats["padding-share"] == 0
    assert stats["options"]["speculate"] == MOST
    page = speculating.get("/metrics").text
    found = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(found['eb_drafts_total{kind="accepted"}']) >= accepted
    assert float(found['eb_positions_total{kind="rejected_draft"}']) >= rejected
    assert float(found["tgi_request_skipped_tokens_sum"]) == float(
        found['eb_drafts_total{kind="accepted"}']
    )
    assert f'tgi_request_skipped_tokens_bucket{{le="{MOST}.0"}}' in found
    trace = speculating.get("/watch/trace?format=chrome").text
    assert '"accepted drafts"' in trace


@pytest.mark.parametrize("content", ["12345", [{"type": "text", "text": "12345"}]])
def test_usage_counts_the_drafts_of_an_answer_that_was_predicted(
    speculating: FlaskClient, content: object
) -> None:
    fields: Json = {
        "max_tokens": 40,
        "seed": 1,
        "prediction": {"type": "content", "content": content},
    }
    speculating.post("/stats/reset")
    usage = chat(speculating, **fields)["usage"]
    stats: Json = speculating.get("/stats").json or {}
    details = usage["completion_tokens_details"]
    assert stats["drafts"] == {
        kind: details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected")
    }
    assert details["accepted_prediction_tokens"] > 0
    streamed = chunks(
        speculating, "/v1/chat/completions", **fields, stream_options={"include_usage": True}
    )
    assert streamed[-1]["usage"]["completion_tokens_details"] == details


def test_without_drafts_there_are_no_headers_of_them(client: FlaskClient) -> None:
    answer = client.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 3}})
    assert "x-accepted-drafts" not in answer.headers
