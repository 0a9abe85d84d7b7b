"""`--speculate` over HTTP: statistics, metrics and headers count the drafts. That answers are those
without it is tested in `openai/test_openai.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from tests.api.conftest import MOST_DRAFTS, speculating
from tests.support.openai_calls import Json, chat, chunks


@pytest.fixture(scope="module")
def drafting() -> Iterator[FlaskClient]:
    with speculating() as client:
        yield client


def test_statistics_metrics_headers_and_the_live_page_tell_the_drafts(
    drafting: FlaskClient,
) -> None:
    drafting.post("/stats/reset")
    asked = {"inputs": "drafts", "parameters": {"max_new_tokens": 40, "seed": 1}}
    answer = drafting.post("/generate", json=asked)
    accepted, rejected = (
        int(answer.headers[f"x-{kind}-drafts"]) for kind in ("accepted", "rejected")
    )
    assert accepted > 0
    assert rejected > 0
    stats: Json = drafting.get("/stats").json or {}
    assert stats["drafts"] == {"accepted": accepted, "rejected": rejected}
    assert stats["padding-share"] == 0
    assert stats["options"]["speculate"] == MOST_DRAFTS
    page = drafting.get("/metrics").text
    found = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(found['eb_drafts_total{kind="accepted"}']) >= accepted
    assert float(found['eb_positions_total{kind="rejected_draft"}']) >= rejected
    assert float(found["tgi_request_skipped_tokens_sum"]) == float(
        found['eb_drafts_total{kind="accepted"}']
    )
    assert f'tgi_request_skipped_tokens_bucket{{le="{MOST_DRAFTS}.0"}}' in found
    trace = drafting.get("/watch/trace?format=chrome").text
    assert '"accepted drafts"' in trace


@pytest.mark.parametrize("content", ["12345", [{"type": "text", "text": "12345"}]])
def test_usage_counts_the_drafts_of_an_answer_that_was_predicted(
    drafting: FlaskClient, content: object
) -> None:
    fields: Json = {
        "max_tokens": 40,
        "seed": 1,
        "prediction": {"type": "content", "content": content},
    }
    drafting.post("/stats/reset")
    usage = chat(drafting, **fields)["usage"]
    stats: Json = drafting.get("/stats").json or {}
    details = usage["completion_tokens_details"]
    assert stats["drafts"] == {
        kind: details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected")
    }
    assert details["accepted_prediction_tokens"] > 0
    streamed = chunks(
        drafting, "/v1/chat/completions", **fields, stream_options={"include_usage": True}
    )
    assert streamed[-1]["usage"]["completion_tokens_details"] == details


def test_without_drafts_there_are_no_headers_of_them(client: FlaskClient) -> None:
    answer = client.post("/generate", json={"inputs": "a", "parameters": {"max_new_tokens": 3}})
    assert "x-accepted-drafts" not in answer.headers
