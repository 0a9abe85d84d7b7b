"""Prompt and answer up to the context fit, on every API; beyond it they are refused with both
numbers, and a text that cannot fit is not even encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from serving.config import Config
from tests.api.conftest import EMBEDDED_LEN, serving
from tests.support.dialects import NATIVE, PATHS, RESPONSES, TGI, ask, refused
from tests.support.hash_app import byte_tokenizer
from tests.support.hash_model import HashModel
from text.tokenizer import Tokenizer

LIMIT = 64
PROMPT = "Once upon a time there was a cat."
FIELD = dict(zip(PATHS[1:4], ("prompt", "messages", "input"), strict=True))
LONG = "x" * (32 * LIMIT)
encoded: list[int] = []  # the lengths of the texts


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    plain = byte_tokenizer()

    def encode(text: str) -> list[int]:
        encoded.append(len(text))
        return plain.encode(text)

    counting = Tokenizer(encode, dict(enumerate(plain.spellings)), plain.end_ids)
    folder = str(tmp_path_factory.mktemp("limited"))
    config = Config(mode="dynamic", data_dir=folder)
    with serving(config, lambda _: HashModel(context=LIMIT), counting) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_answer_up_to_the_limit_fit_and_beyond_it_do_not(
    limited: FlaskClient, path: str, stream: bool
) -> None:
    known = len(PROMPT) + (len("User: \nAssistant:") if path in PATHS[2:4] else 0)
    assert ask(limited, path, PROMPT, LIMIT - known).status_code == 200
    for tokens in (LIMIT, 2**31 - 1):
        assert str(LIMIT) in refused(ask(limited, path, PROMPT, tokens, stream=stream), path)
    tokens = LIMIT - known + 1
    answer = ask(limited, path, PROMPT, tokens, stream=stream)
    message = refused(answer, path)
    if path == NATIVE:
        assert f"prompt ({known} tokens) and num_tokens ({tokens})" in message
        assert f"context of {LIMIT}" in message
    elif path == TGI:
        most = f"`inputs` tokens + `max_new_tokens` must be <= {LIMIT}. Given: {known} "
        assert f"{most}`inputs` tokens and {tokens} `max_new_tokens`" in message
    else:
        assert f"maximum context length is {LIMIT} tokens. However, " in message
        assert f"({known} in the " in message
        assert f"{tokens} in the completion" in message
        error = answer.get_json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", FIELD[path])


def test_the_limit_may_be_less_than_the_models_own(embedded: FlaskClient) -> None:
    (card,) = embedded.get("/v1/models").get_json()["data"]
    assert card["max_model_len"] == EMBEDDED_LEN
    answer = ask(embedded, NATIVE, tokens=EMBEDDED_LEN)
    assert f"context of {EMBEDDED_LEN}" in refused(answer, NATIVE)
    assert ask(embedded, NATIVE, tokens=EMBEDDED_LEN - 8).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": ["a", LONG]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        (RESPONSES, {"input": LONG}),
        (NATIVE, {"prompt": LONG, "num_tokens": 1}),
        (TGI, {"inputs": LONG}),
        ("/generate_stream", {"inputs": LONG}),
        ("/", {"inputs": ["a", LONG]}),
    ],
)
def test_what_cannot_fit_is_refused_unread(
    limited: FlaskClient, path: str, body: dict[str, Any]
) -> None:
    encoded.clear()
    assert "at least" in refused(limited.post(path, json=body), path)
    assert max(encoded, default=0) <= 1


def test_what_is_cut_is_not_read_and_what_is_only_counted_may_be_longer(
    limited: FlaskClient,
) -> None:
    prediction = {"type": "content", "content": LONG}
    for answer in (
        ask(limited, TGI, LONG, truncate=8),
        ask(limited, "/v1/chat/completions", "a", prediction=prediction),
    ):
        assert answer.status_code == 200
    assert max(encoded) < len(LONG)
    told = limited.post("/tokenize", json={"prompt": LONG}).get_json()
    assert (told["count"], told["max_model_len"]) == (len(LONG), LIMIT)
    assert len(limited.post("/tokenize", json={"inputs": LONG}).get_json()) == len(LONG)
