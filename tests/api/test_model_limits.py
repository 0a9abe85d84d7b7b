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

from api.defaults import load_sampling_defaults
from requested import Sampling
from seams import Opening
from serving.config import Config
from tests.api.conftest import EMBEDDED_LEN, serving
from tests.support.dialects import NATIVE, PATHS, RESPONSES, TGI, ask, refused
from tests.support.hash_app import byte_tokenizer
from tests.support.hash_model import HashModel
from text.tokenizer import Tokenizer, VocabularyError

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


# --- defaults ----------------------------------------------------------------------------

# as Qwen2.5 and fine-tunes of it publish them
QWEN = {
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True,
    "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8,
    "top_k": 20, "max_new_tokens": 40, "transformers_version": "4.37.0",
}  # fmt: skip
OF_QWEN = {name: QWEN[name] for name in
           ("repetition_penalty", "temperature", "top_p", "top_k", "max_new_tokens")}  # fmt: skip
NOTHING = Sampling()
OWN = [path for path in PATHS if path != TGI]
LATER = OWN[1:]  # OpenAI's


class Listening(HashModel):
    """Knows how the newest request wants to be sampled."""

    asked = NOTHING

    def open(self, new: Sequence[Opening]) -> None:
        self.asked = new[-1].sampling
        super().open(new)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "qwen"
    folder.mkdir()
    (folder / "generation_config.json").write_text(json.dumps(QWEN))
    return folder


@pytest.fixture(scope="module")
def model() -> Listening:
    return Listening()


@pytest.fixture(scope="module")
def qwen(folder: Path, model: Listening) -> Iterator[FlaskClient]:
    with serving(Config(mode="dynamic", model=str(folder)), lambda config: model) as client:
        yield client


def drawn(sampling: Sampling) -> tuple[float, int | None, float, float, float]:
    return (
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
        sampling.repetition_penalty,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "said", "expected"),
    [
        (OWN, {}, (0.7, 20, 0.8, 0.0, 1.05)),
        (OWN, {"temperature": 0.0}, (0.0, 20, 0.8, 0.0, 1.05)),
        (OWN, {"temperature": 1.0, "top_p": 1.0}, (1.0, 20, 1.0, 0.0, 1.05)),
        (OWN, {"top_k": 3}, (0.7, 3, 0.8, 0.0, 1.05)),
        ([NATIVE], {"top_k": None}, (0.7, None, 0.8, 0.0, 1.05)),
        (LATER, {"top_k": -1, "repetition_penalty": 1.0}, (0.7, None, 0.8, 0.0, 1.0)),
        (LATER, {"temperature": None, "top_k": 0, "min_p": 0.2}, (0.7, None, 0.8, 0.2, 1.05)),
        ([TGI], {}, (0.0, None, 1.0, 0.0, 1.0)),
    ],
)
def test_the_models_defaults_count_where_the_client_says_nothing(
    qwen: FlaskClient, model: Listening, paths: list[str], said: Any, expected: Any
) -> None:
    for path in paths:
        answer = ask(qwen, path, "a", **(said | ({"seed": 1} if path == TGI else {})))
        assert answer.status_code == 200, answer.text
        assert drawn(model.asked) == expected
        if path == "/v1/responses":
            assert (answer.json or {})["temperature"] == expected[0]


def test_chats_end_where_the_model_says(qwen: FlaskClient) -> None:
    for said, tokens in ({"max_tokens": None}, 40), ({"max_tokens": 50}, 50):
        answer = ask(qwen, LATER[1], "a", ignore_eos=True, **said).json or {}
        assert answer["usage"]["completion_tokens"] == tokens


def test_they_are_shown_and_can_be_left_out(qwen: FlaskClient, folder: Path) -> None:
    assert (qwen.get("/stats").json or {})["model"]["sampling_defaults"] == OF_QWEN
    model, config = Listening(), Config(mode="dynamic", model=str(folder), generation_config=False)
    with serving(config, lambda config: model) as client:
        ask(client, NATIVE)
        assert drawn(model.asked) == drawn(NOTHING)
        assert (client.get("/stats").json or {})["model"]["sampling_defaults"] == {}


@pytest.mark.parametrize(
    ("said", "wrong"),
    [({"temperature": -1}, "'temperature' must be 0"), ({"top_p": float("nan")}, "'top_p' must")],
)
def test_a_wrong_default_is_refused_by_its_name(tmp_path: Path, said: Any, wrong: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    with pytest.raises(VocabularyError, match=f"{wrong}.* --generation-config false"):
        load_sampling_defaults(str(tmp_path))
