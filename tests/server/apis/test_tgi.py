"""TGI's API over real sockets, by its official client and by others.

The cases of TGI's own `integration-tests/models/test_flash_gpt2.py` are here with the embedded
model in place of GPT-2: ten greedy tokens with details, all parameters, and a load of identical
requests that must have identical answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from huggingface_hub import InferenceClient
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError

from tests.hashed import reference
from tests.server.hash_app import ENDLESS, FAIL_ON, HOLD, STEP_S, byte_tokenizer
from tests.server.process import (
    PATIENCE_S,
    Server,
    clients,
    closed_at_end,
    eventually,
    serving,
)
from tests.server.wire import send


def official(server: Server) -> InferenceClient:
    return closed_at_end(InferenceClient(model=server.url, timeout=PATIENCE_S))


def post(server: Server, path: str, inputs: object, **parameters: Any) -> requests.Response:
    body = {"inputs": inputs, "parameters": parameters}
    return requests.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S)


def greedy(prompt: str, tokens: int) -> str:
    tokenizer = byte_tokenizer()
    ids = reference(list(prompt.encode()), tokens, None)
    return b"".join(tokenizer.token_bytes(token) for token in ids).decode(errors="replace")


# --- the official client ----------------------------------------------------------------------


def test_ten_greedy_tokens_with_details_in_the_official_client(embedded: Server) -> None:
    told = official(embedded).text_generation(
        "Once upon a time", max_new_tokens=10, details=True, decoder_input_details=True
    )
    assert told.details is not None
    assert told.details.finish_reason == "length"
    assert told.details.generated_tokens == len(told.details.tokens) == 10
    assert told.details.seed is None
    assert told.details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in told.details.prefill[1:])
    assert all(token.logprob <= 0 for token in told.details.tokens)
    texts = [token.text for token in told.details.tokens]
    assert told.generated_text == "Once upon a time" + "".join(texts)
    prompt = [token.text for token in told.details.prefill]
    assert "".join(prompt) == "Once upon a time"


def test_a_chat_in_the_official_client_needs_no_model(embedded: Server) -> None:
    """The client names a model of its own making."""
    answer = official(embedded).chat_completion(
        [{"role": "user", "content": "x"}], max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert answer.model == "embedded"
    assert answer.usage.completion_tokens == 3


def test_all_parameters_in_the_official_client(embedded: Server) -> None:
    told = official(embedded).text_generation(
        "Once upon a time",
        max_new_tokens=10,
        repetition_penalty=1.2,
        frequency_penalty=0.1,
        return_full_text=False,
        stop=["zebra"],
        temperature=0.5,
        top_p=0.9,
        top_k=10,
        truncate=5,
        typical_p=0.9,
        watermark=False,
        details=True,
        decoder_input_details=True,
        seed=0,
        top_n_tokens=2,
        best_of=1,
    )
    assert told.details is not None
    assert told.details.seed == 0
    assert len(told.details.prefill) <= 5
    assert told.details.top_tokens is not None
    assert [len(top) for top in told.details.top_tokens] == [2] * told.details.generated_tokens


def test_a_load_of_identical_requests_has_identical_answers(embedded: Server) -> None:
    def ask() -> str:
        return official(embedded).text_generation("Once upon a time", max_new_tokens=10)

    with clients(4) as call:
        texts = [future.result() for future in [call(ask) for _ in range(4)]]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("seed", [None, 7])
def test_a_stream_in_the_official_client_is_the_whole_answer(
    embedded: Server, seed: int | None
) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 20, "do_sample": seed is not None, "seed": seed}
    client = official(embedded)
    whole = client.text_generation("The cat", return_full_text=False, **asked)
    assert "".join(client.text_generation("The cat", stream=True, **asked)) == whole
    *_, last = client.text_generation("The cat", stream=True, details=True, **asked)
    assert last.generated_text == "The cat" + whole
    assert last.details is not None
    assert (last.details.seed, last.details.generated_tokens) == (seed, 20)


def test_a_stop_string_of_several_tokens_stays_and_ends_the_answer(embedded: Server) -> None:
    client = official(embedded)
    asked: dict[str, Any] = {"max_new_tokens": 40, "return_full_text": False}
    text = client.text_generation("Once upon a time", **asked)
    stop = text[20:29]
    told = client.text_generation("Once upon a time", stop=[stop], details=True, **asked)
    assert told.details is not None
    assert told.details.finish_reason == "stop_sequence"
    assert text.startswith(told.generated_text)
    # up to the token that completes it
    last = told.details.tokens[-1].text
    assert stop in told.generated_text
    assert stop not in told.generated_text.removesuffix(last)
    *_, event = client.text_generation(
        "Once upon a time", stop=[stop], stream=True, details=True, **asked
    )
    assert event.generated_text == told.generated_text


def test_the_official_client_recognises_what_was_wrong(server: Server) -> None:
    for stream in (False, True):
        with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
            official(server).text_generation("x", temperature=-1.0, stream=stream)


def test_the_official_client_recognises_a_generation_that_failed(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "2,4,8"}) as server:
        with pytest.raises(GenerationError, match="iteration 2 fails"):
            official(server).text_generation("x", max_new_tokens=9)
        client = official(server)
        told: list[str] = []
        with pytest.raises(GenerationError, match="iteration 4 fails"):
            told.extend(client.text_generation("x", max_new_tokens=9, stream=True))
        assert "".join(told) == greedy("x", 1)
        answer = post(server, "/generate", "x", max_new_tokens=9, stop=["never"])
        assert answer.status_code == 424
        assert answer.json()["error_type"] == "generation"
        assert post(server, "/generate", "x", max_new_tokens=9).status_code == 200


def test_a_stream_that_fails_before_its_first_token_has_a_true_status(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={FAIL_ON: "1"}) as server:
        answer = post(server, "/generate_stream", "x", max_new_tokens=9)
        assert answer.status_code == 424
        assert answer.json() == {
            "error": "Request failed during generation: the model failed: iteration 1 fails on "
            "request",
            "error_type": "generation",
        }


# --- under load -------------------------------------------------------------------------------


def test_a_request_beyond_the_concurrent_ones_is_told_to_retry(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    steps: dict[str, object] = {STEP_S: 0.01, ENDLESS: "1", HOLD: hold}
    with (
        serving(tmp_path, hash_model=steps, max_concurrent_requests=1) as server,
        clients(1) as call,
    ):
        running = call(post, server, "/generate", "x", max_new_tokens=20)
        server.reaches(running=1)
        for path in ("/generate", "/generate_stream"):
            answer = post(server, path, "x", max_new_tokens=1)
            assert answer.status_code == 429
            assert answer.json()["error_type"] == "overloaded"
            assert "--max-concurrent-requests" in answer.json()["error"]
            assert int(answer.headers["Retry-After"]) >= 1
        with pytest.raises(OverloadedError):
            official(server).text_generation("x", max_new_tokens=1, stream=True)
        hold.unlink()
        assert running.result().status_code == 200
        for path in ("/generate", "/generate_stream") * 2:  # places come back
            assert post(server, path, "x", max_new_tokens=1).status_code == 200
            # that of a stream a moment after its client has all of it
            eventually(lambda: post(server, "/generate", "x", max_new_tokens=1).ok, "a place")
            with send(server, path, inputs="x", parameters={"max_new_tokens": 1000}):
                server.reaches(running=1)
            eventually(lambda: post(server, "/generate", "x", max_new_tokens=1).ok, "a place")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Whose generations end when they are complete, cancelled or stopped."""
    folder = tmp_path_factory.mktemp("endless")
    with serving(folder, hash_model={STEP_S: 0.02, ENDLESS: "1"}) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "parameters", "generations"),
    [
        ("/generate", {}, 1),
        ("/generate", {"stop": ["never"]}, 1),
        ("/generate", {"best_of": 2, "do_sample": True}, 2),
        ("/generate_stream", {}, 1),
    ],
)
def test_a_client_that_leaves_frees_all_it_held(
    endless: Server, path: str, parameters: dict[str, Any], generations: int
) -> None:
    before = endless.counts()["cancelled"]
    asked = {"max_new_tokens": 1000, **parameters}
    client = send(endless, path, inputs="x", parameters=asked)
    endless.reaches(running=generations)
    client.close()
    endless.reaches(running=0, cancelled=before + generations)


def test_a_stop_string_that_is_found_frees_the_place(server: Server) -> None:
    server.reaches(running=0, waiting=0)
    text = greedy("hello", 30)
    stop = text[10:12]
    before = server.stats()["total-tokens-handled"]
    answer = post(server, "/generate", "hello", max_new_tokens=900, stop=[stop], details=True)
    told = answer.json()
    assert told["details"]["finish_reason"] == "stop_sequence"
    assert told["generated_text"].endswith(stop)
    assert int(answer.headers["x-generated-tokens"]) == told["details"]["generated_tokens"]
    server.reaches(running=0)
    assert server.stats()["total-tokens-handled"] < before + 300


@pytest.mark.parametrize("mode", ["nobatch", "static"])
def test_the_other_modes_answer_too(mode: str, tmp_path: Path) -> None:
    with serving(tmp_path, mode, max_wait_ms=0) as server:
        told = post(server, "/generate", "hello", max_new_tokens=30, details=True).json()
        text = told["generated_text"]
        assert text == greedy("hello", told["details"]["generated_tokens"])
        stop = text[5:7]
        streamed = post(server, "/generate_stream", "hello", max_new_tokens=30, stop=[stop])
        last = json.loads(streamed.text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert last["generated_text"] == text[: text.index(stop) + len(stop)]


def test_limits_are_those_of_the_options(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "max_best_of": 1,
        "max_stop_sequences": 1,
        "max_top_n_tokens": 0,
        "max_client_batch_size": 1,
        "max_input_tokens": 5,
        "max_total_tokens": 9,
    }
    with serving(tmp_path, **options) as server:
        for inputs, parameters, message in (
            ("x", {"best_of": 2, "do_sample": True}, "`best_of` != 1 is not allowed"),
            ("x", {"stop": ["a", "b"]}, "`stop` supports up to 1 stop sequences. Given: 2"),
            ("x", {"top_n_tokens": 1}, "`top_n_tokens` != 0 is not allowed"),
            ("abcdef", {}, "`inputs` must have less than 5 tokens. Given: 6"),
            ("abc", {"max_new_tokens": 7}, "must be <= 9. Given: 3 `inputs` tokens and 7"),
            (["a", "b"], {}, "Number of prompts must be > 0 and <= 1. Given: 2"),
        ):
            answer = post(server, "/", inputs, **parameters)
            assert answer.status_code == 422
            assert message in answer.json()["error"]
        told = post(server, "/generate", "abc", details=True).json()["details"]
        assert told["generated_tokens"] == 6 or told["finish_reason"] == "eos_token"
        info = requests.get(f"{server.url}/info", timeout=PATIENCE_S).json()
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (5, 9)
