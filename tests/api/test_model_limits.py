"""What a model says of requests: its context, into which prompt and answer must fit on every API,
and the sampling defaults of its `generation_config.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from requested import Sampling
from seams import Opening
from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import NATIVE, PATHS, TGI, ask, refused
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
    assert {str(LIMIT), str(known), str(tokens)} <= set(re.findall(r"[0-9]+", message))
    if path in FIELD:
        error = answer.get_json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", FIELD[path])


def test_what_cannot_fit_is_refused_unread(limited: FlaskClient) -> None:
    encoded.clear()
    for path in PATHS:
        assert "at least" in refused(ask(limited, path, LONG), path)
    for path, body in (
        ("/v1/completions", {"prompt": ["a", LONG]}),
        ("/", {"inputs": ["a", LONG]}),
    ):
        assert "at least" in refused(limited.post(path, json=body), path)
    assert max(encoded, default=0) <= 1


def test_what_is_cut_or_only_counted_may_be_longer(limited: FlaskClient) -> None:
    assert ask(limited, TGI, LONG, truncate=8).status_code == 200
    told = limited.post("/tokenize", json={"prompt": LONG}).get_json()
    assert (told["count"], told["max_model_len"]) == (len(LONG), LIMIT)


# --- defaults ----------------------------------------------------------------------------

# as Qwen2.5 and fine-tunes of it publish them
QWEN = {
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True,
    "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8,
    "top_k": 20, "max_new_tokens": 40, "transformers_version": "4.37.0",
}  # fmt: skip
OF_QWEN = {name: QWEN[name] for name in
           ("repetition_penalty", "temperature", "top_p", "top_k", "max_new_tokens")}  # fmt: skip
OWN = [path for path in PATHS if path != TGI]
LATER = OWN[1:]  # OpenAI's
ASKED: list[tuple[Sequence[str], Any, tuple[float | None, ...]]] = [
    (OWN, {}, (0.7, 20, 0.8, 0.0, 1.05)),
    (OWN, {"temperature": 0.0}, (0.0, 20, 0.8, 0.0, 1.05)),
    (OWN, {"temperature": 1.0, "top_p": 1.0}, (1.0, 20, 1.0, 0.0, 1.05)),
    (OWN, {"top_k": 3}, (0.7, 3, 0.8, 0.0, 1.05)),
    ([NATIVE], {"top_k": None}, (0.7, None, 0.8, 0.0, 1.05)),
    (LATER, {"top_k": -1, "repetition_penalty": 1.0}, (0.7, None, 0.8, 0.0, 1.0)),
    (LATER, {"temperature": None, "top_k": 0, "min_p": 0.2}, (0.7, None, 0.8, 0.2, 1.05)),
    ([TGI], {"seed": 1}, (0.0, None, 1.0, 0.0, 1.0)),
]


@pytest.mark.parametrize("used", [True, False])
def test_the_models_defaults_count_where_the_client_says_nothing(
    used: bool, tmp_path: Path
) -> None:
    asked: list[Sampling] = []

    class Listening(HashModel):
        def open(self, new: Sequence[Opening]) -> None:
            asked.extend(one.sampling for one in new)
            super().open(new)

    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN))
    config = Config("dynamic", model=str(tmp_path), generation_config=used)
    with serving(config, lambda config: Listening()) as client:
        shown = client.get("/stats").get_json()["model"]["sampling_defaults"]
        assert shown == (OF_QWEN if used else {})
        for paths, said, expected in (
            ASKED if used else [([NATIVE], {}, (1.0, None, 1.0, 0.0, 1.0))]
        ):
            for path in paths:
                answer = ask(client, path, "a", **said)
                assert answer.status_code == 200, answer.text
                names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
                assert tuple(getattr(asked[-1], name) for name in names) == expected
                if path == "/v1/responses":
                    assert answer.get_json()["temperature"] == expected[0]
        told = ask(client, LATER[1], "a", ignore_eos=True, max_tokens=None).get_json()
        most = QWEN["max_new_tokens"] if used else 1024 - told["usage"]["prompt_tokens"]
        assert told["usage"]["completion_tokens"] == most
