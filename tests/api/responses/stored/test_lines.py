"""Responses as lines of batches."""

from __future__ import annotations

from flask.testing import FlaskClient
from openai.types.responses import Response

from tests.api.jobs.test_batches import answers, line, run
from tests.api.responses.test_responses import Json, ask, bearer, respond, without_names

PATH = "/v1/responses"


def test_a_line_is_answered_as_its_endpoint_would(store: FlaskClient) -> None:
    fields: Json = {"input": "x", "max_output_tokens": 9, "seed": 4}
    earlier = respond(store, store=True, **fields)
    bodies: list[Json] = [
        fields,
        {**fields, "previous_response_id": earlier["id"], "instructions": "Be brief."},
        {**fields, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}},
        {**fields, "store": True},
    ]
    lines = [line(number, url=PATH, body=body) for number, body in enumerate(bodies)]
    batch = run(store, *lines, endpoint=PATH)
    assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    told = answers(store, batch["output_file_id"])
    tokens = 0
    for number, body in enumerate(bodies):
        one = told[f"id {number}"]["response"]["body"]
        Response.model_validate(one, strict=True)
        assert without_names(one) == without_names(respond(store, **body, **kept(one)))
        tokens += one["usage"]["output_tokens"]
        found = store.get(f"{PATH}/{one['id']}", headers=bearer("one"))
        assert found.status_code == (200 if body.get("store") else 404)
    assert batch["usage"]["output_tokens"] == tokens


def kept(response: Json) -> Json:
    """What a call without a batch must say to be kept, or not, as a line is."""
    return {} if response["store"] else {"store": False}


def test_a_line_that_is_refused_says_why_in_the_error_file(store: FlaskClient) -> None:
    refused: list[Json] = [
        {"input": "x", "reasoning": "low"},
        {"input": "x", "previous_response_id": "resp_none"},
        {"input": "x", "background": True},
    ]
    lines = [line(number, url=PATH, body=body) for number, body in enumerate(refused)]
    batch = run(store, *lines, endpoint=PATH)
    assert batch["output_file_id"] is None
    told = answers(store, batch["error_file_id"])
    for number, body in enumerate(refused[:2]):
        direct = ask(store, **body)
        one = told[f"id {number}"]["response"]
        assert (one["status_code"], one["body"]) == (direct.status_code, direct.get_json())
    assert told["id 2"]["response"]["body"]["error"]["param"] == "background"
