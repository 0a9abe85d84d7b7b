"""A text that cannot fit into the context is refused before it is encoded; where an API truncates,
only what may be kept is encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from serving.config import Config
from tests.api.conftest import serving
from tests.api.openai.openai_calls import CONTEXT
from tests.server.hash_app import byte_tokenizer, load
from text.tokenizer import Tokenizer

LONG = "x" * (32 * CONTEXT)
USER = [{"role": "user", "content": LONG}]
encoded: list[int] = []  # the lengths of the texts


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    plain = byte_tokenizer()

    def encode(text: str) -> list[int]:
        encoded.append(len(text))
        return plain.encode(text)

    table = dict(enumerate(plain.spellings))
    counting = Tokenizer(encode, table, plain.end_ids)
    folder = str(tmp_path_factory.mktemp("unread"))
    with serving(Config(mode="dynamic", data_dir=folder), load, counting) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": ["a", LONG]}),
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/responses", {"input": LONG}),
        ("/inference", {"prompt": LONG, "num_tokens": 1}),
        ("/generate", {"inputs": LONG}),
        ("/generate_stream", {"inputs": LONG}),
        ("/", {"inputs": ["a", LONG]}),
    ],
)
def test_what_cannot_fit_is_refused_unread(
    unread: FlaskClient, path: str, body: dict[str, Any]
) -> None:
    encoded.clear()
    refused = unread.post(path, json=body)
    assert refused.status_code == (422 if "inputs" in body else 400)
    assert "at least" in refused.text
    assert max(encoded, default=0) <= 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": LONG, "parameters": {"truncate": 8, "max_new_tokens": 1}}),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "a"}],
                "prediction": {"type": "content", "content": LONG},
                "max_tokens": 1,
            },
        ),
    ],
)
def test_what_is_cut_is_not_read(unread: FlaskClient, path: str, body: dict[str, Any]) -> None:
    encoded.clear()
    assert unread.post(path, json=body).status_code == 200
    assert max(encoded) < len(LONG)


def test_tokenize_reads_what_does_not_fit(unread: FlaskClient) -> None:
    told = unread.post("/tokenize", json={"prompt": LONG}).get_json()
    assert (told["count"], told["max_model_len"]) == (32 * CONTEXT, CONTEXT)
    assert len(unread.post("/tokenize", json={"inputs": LONG}).get_json()) == 32 * CONTEXT
