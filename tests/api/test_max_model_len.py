"""`--max-model-len`: every API takes requests up to it and refuses longer ones with both numbers,
although the model's own context is longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from models.names import EMBEDDED
from serving.config import Config
from serving.thread import load_configured_model
from tests.api.conftest import serving
from tests.api.openai.openai_calls import is_error
from text.vocabulary import load_tokenizer

LIMIT = 64
PROMPT = "Once upon a time there was a cat."
USER = [{"role": "user", "content": PROMPT}]
# path -> the request, the name of its limit, and what its prompt is called in errors
OPENAI: dict[str, tuple[dict[str, Any], str, str]] = {
    "/v1/completions": ({"prompt": PROMPT}, "max_tokens", "prompt"),
    "/v1/chat/completions": ({"messages": USER}, "max_tokens", "messages"),
    "/v1/responses": ({"input": PROMPT}, "max_output_tokens", "input"),
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = str(tmp_path_factory.mktemp("limited"))
    config = Config(mode="dynamic", data_dir=folder, max_model_len=LIMIT, max_batch_size=4)
    with serving(config, load_configured_model, load_tokenizer(EMBEDDED)) as client:
        yield client


def test_models_have_the_limit(limited: FlaskClient) -> None:
    (card,) = limited.get("/v1/models").get_json()["data"]
    assert card["max_model_len"] == LIMIT


@pytest.mark.parametrize("path", OPENAI)
@pytest.mark.parametrize("stream", [False, True])
def test_openais_api_refuses_more_with_both_numbers(
    limited: FlaskClient, path: str, stream: bool
) -> None:
    body, most, prompt_field = OPENAI[path]

    def ask(tokens: int, *, stream: bool = False) -> TestResponse:
        return limited.post(path, json={"model": EMBEDDED, "stream": stream, **body, most: tokens})

    usage = ask(1).get_json()["usage"]
    known = usage["input_tokens" if path == "/v1/responses" else "prompt_tokens"]
    assert ask(LIMIT - known).status_code == 200
    answer = ask(LIMIT - known + 1, stream=stream)
    message = is_error(answer, 400, prompt_field)
    assert f"({known} in the " in message
    assert f"{LIMIT - known + 1} in the completion" in message
    assert f"maximum context length is {LIMIT} tokens" in message
    assert answer.get_json()["error"]["code"] == "context_length_exceeded"


def test_the_native_api_refuses_more_with_both_numbers(limited: FlaskClient) -> None:
    known = len(load_tokenizer(EMBEDDED).encode_prompt(PROMPT))

    def ask(tokens: int) -> TestResponse:
        return limited.post("/inference", json={"prompt": PROMPT, "num_tokens": tokens})

    assert ask(LIMIT - known).status_code == 200
    refused = ask(LIMIT - known + 1)
    assert refused.status_code == 400
    assert f"prompt ({known} tokens) and num_tokens ({LIMIT - known + 1})" in refused.text
    assert f"context of {LIMIT}" in refused.text


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_tgis_api_refuses_more_with_both_numbers(limited: FlaskClient, path: str) -> None:
    """With its own status for what it refuses."""
    known = len(load_tokenizer(EMBEDDED).encode_prompt(PROMPT))

    def ask(tokens: int) -> TestResponse:
        return limited.post(path, json={"inputs": PROMPT, "parameters": {"max_new_tokens": tokens}})

    assert ask(LIMIT - known).status_code == 200
    refused = ask(LIMIT - known + 1)
    assert refused.status_code == 422
    assert f"`inputs` tokens + `max_new_tokens` must be <= {LIMIT}. Given: {known}" in refused.text
    assert f"and {LIMIT - known + 1} `max_new_tokens`" in refused.text
