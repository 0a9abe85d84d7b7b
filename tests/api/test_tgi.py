"""TGI's API: what may be asked, TGI's words for what may not, and what is answered. Texts as tokens
and back, in vLLM's shape, too."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import Json
from tests.support.hash_app import generated as tokens_of
from tests.support.hash_app import spelled
from tests.support.hashed import reference_logprob
from tests.support.openai_calls import CONTEXT

TGI, STREAM = "/generate", "/generate_stream"
PATHS = ("/", TGI, STREAM)


def ask(client: FlaskClient, path: str, inputs: object, **parameters: Any) -> TestResponse:
    return client.post(path, json={"inputs": inputs, "parameters": parameters})


def generated(client: FlaskClient, inputs: str, **parameters: Any) -> Json:
    answer = ask(client, TGI, inputs, **parameters)
    assert answer.status_code == 200, answer.get_json()
    told: Json = answer.get_json()
    return told


def refused(answer: TestResponse, message: str, status: int = 422) -> bool:
    error = {"error": f"Input validation error: {message}", "error_type": "validation"}
    assert (answer.status_code, answer.get_json()) == (status, error)
    return True


ASKED = "must be <= 1024. Given: 3 `inputs` tokens and 1022 `max_new_tokens`"
NOT_STREAMED = "is not supported when streaming tokens"


@pytest.mark.parametrize(
    ("paths", "parameters", "message"),
    [
        (PATHS, {"inputs": ""}, "`inputs` cannot be empty"),
        (PATHS, {"inputs": "x" * 1024}, "`inputs` must have less than 1023 tokens. Given: 1024"),
        (["/"], {"inputs": ["a"] * 5}, "Number of prompts must be > 0 and <= 4. Given: 5"),
        (PATHS, {"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        (PATHS, {"max_new_tokens": 1022}, f"`inputs` tokens + `max_new_tokens` {ASKED}"),
        (PATHS, {"stop": ["a"] * 5}, "`stop` supports up to 4 stop sequences. Given: 5"),
        (PATHS, {"stop": [""]}, "`stop` must not contain an empty string"),
        (PATHS, {"stop": ["a" * 1025]},
         "each of `stop` may have up to 1024 characters. Given: 1025"),
        (PATHS, {"truncate": 1024},
         "`truncate` must be strictly positive and less than 1023. Given: 1024"),
        (PATHS, {"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        (PATHS, {"watermark": True}, "`watermark` is not supported by this server"),
        (PATHS, {"grammar": {"type": "json_schema", "value": {}}},
         "grammar is not valid: the schema must be an object"),
        ([TGI], {"best_of": 3, "do_sample": True}, "`best_of` must be > 0 and <= 2. Given: 3"),
        ([TGI], {"best_of": 2}, "you must use sampling when `best_of` is > 1"),
        ([TGI], {"best_of": 2, "top_k": 3, "seed": 1}, "`seed` must not be set when `best_of` > 1"),
        ([STREAM], {"best_of": 2, "do_sample": True}, f"`best_of` != 1 {NOT_STREAMED}"),
        ([STREAM], {"decoder_input_details": True},
         f"`decoder_input_details` == true {NOT_STREAMED}"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_in_tgis_words_before_any_stream(
    client: FlaskClient, paths: list[str], parameters: dict[str, Any], message: str
) -> None:
    for path in paths:
        assert refused(ask(client, path, **{"inputs": "abc", **parameters}), message)


def test_limits_are_those_of_the_options() -> None:
    options: Json = {"max_best_of": 1, "max_stop_sequences": 1, "max_top_n_tokens": 0}
    options |= {"max_client_batch_size": 1, "max_input_tokens": 5, "max_total_tokens": 9}
    elsewhere = "is not allowed for this endpoint"
    with serving(Config(mode="dynamic", **options)) as client:
        for inputs, parameters, message in (
            ("x", {"best_of": 2, "do_sample": True}, f"`best_of` != 1 {elsewhere}"),
            ("x", {"top_n_tokens": 1}, f"`top_n_tokens` != 0 {elsewhere}"),
            ("abcdef", {}, "`inputs` must have less than 5 tokens. Given: 6"),
            (["a", "b"], {}, "Number of prompts must be > 0 and <= 1. Given: 2"),
        ):
            assert refused(ask(client, "/", inputs, **parameters), message)
        told = generated(client, "abc", details=True)["details"]
        assert told["generated_tokens"] == 6 or told["finish_reason"] == "eos_token"
        assert client.get("/info").get_json()["max_concurrent_requests"] == 32 + 1024


def test_unknown_fields_and_nulls_are_ignored_and_no_inputs_are_not(client: FlaskClient) -> None:
    for path in PATHS:
        for wrong, said in (({}, "is missing; it must be"), ({"inputs": 5}, "must be a string")):
            assert f"field 'inputs' {said}" in client.post(path, json=wrong).get_json()["error"]
    parameters: Json = dict.fromkeys(("best_of", "temperature", "stop", "watermark", "grammar"))
    parameters |= {"max_new_tokens": 3, "max_length": 9}
    body = {"inputs": "abc", "options": {"use_cache": False}, "parameters": parameters}
    told = client.post("/generate", json=body).get_json()
    assert told == {"generated_text": spelled(tokens_of("abc", 3, None))}


@pytest.mark.parametrize("samples", [False, True])
def test_a_request_is_greedy_but_for_those_that_wish_to_sample(
    client: FlaskClient, samples: bool
) -> None:
    """Without any parameters, too; the seed is reported."""
    harmless: list[Json] = [{}, {"temperature": 1.0}, {"do_sample": False}, {"seed": 3}]
    wishes: list[Json] = [{"do_sample": True}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.5}]
    for wish in wishes if samples else harmless:
        details = generated(client, "abc", max_new_tokens=9, details=True, **wish)["details"]
        assert (details["seed"] is not None) == samples
        tokens = tokens_of("abc", 9, details["seed"])
        assert [token["id"] for token in details["tokens"]] == tokens
    texts = {client.post("/generate", json={"inputs": "x" * 1000}).get_data() for _ in range(4)}
    assert len(texts) > 1


def test_the_prompt_is_returned_where_it_is_asked_for_and_at_the_root(client: FlaskClient) -> None:
    text = spelled(tokens_of("abc", 4, None))
    for path, asked, told in (
        (TGI, True, "abc" + text), ("/", None, "abc" + text), ("/", False, text),
    ):  # fmt: skip
        answer = ask(client, path, "abc", max_new_tokens=4, return_full_text=asked).get_json()
        assert (answer if path == "/" else [answer]) == [{"generated_text": told}]


def test_the_logprobs_of_the_prompt_are_those_of_the_model(client: FlaskClient) -> None:
    ids = list(b"hello")
    asked: Json = {"max_new_tokens": 5, "truncate": 5, "decoder_input_details": True}
    told = generated(client, "Say hello", **asked)
    assert told["generated_text"] == spelled(tokens_of("hello", 5, None))
    logprobs = [None, *(reference_logprob(ids[:i], ids[i]) for i in range(1, len(ids)))]
    assert told["details"]["prefill"] == [
        {"id": token, "text": chr(token), "logprob": logprob}
        for token, logprob in zip(ids, logprobs, strict=True)
    ]


def test_the_best_of_two_is_the_one_with_the_better_mean_logprob(client: FlaskClient) -> None:
    for _ in range(5):
        told = generated(client, "abc", max_new_tokens=7, do_sample=True, best_of=2, details=True)
        best, (other,) = told["details"], told["details"]["best_of_sequences"]
        means = []
        for answer in (best, other):
            tokens = [token["id"] for token in answer["tokens"]]
            assert tokens == tokens_of("abc", 7, answer["seed"])
            scores = [token["logprob"] for token in answer["tokens"]]
            means.append(sum(scores) / answer["generated_tokens"])
        assert means[0] >= means[1]
        assert best["seed"] != other["seed"]


def test_several_inputs_have_an_answer_each_in_order(client: FlaskClient) -> None:
    told = ask(client, "/", ["a", "bc", "def"], max_new_tokens=4, return_full_text=False)
    alone = [generated(client, text, max_new_tokens=4) for text in ("a", "bc", "def")]
    assert told.get_json() == alone
    answer = client.post("/", json={"inputs": ["a"], "stream": True})
    assert refused(answer, "`inputs` must be one string when streaming tokens")


def test_tokens_of_a_text_are_returned_with_the_characters_they_cover(client: FlaskClient) -> None:
    told = client.post("/tokenize", json={"inputs": "hé!"}).get_json()
    assert told == [
        {"id": 104, "text": "h", "start": 0, "stop": 1},
        {"id": 195, "text": "é", "start": 1, "stop": 2},
        {"id": 169, "text": "é", "start": 1, "stop": 2},
        {"id": 33, "text": "!", "start": 2, "stop": 3},
    ]
    assert client.post("/tokenize", json={"inputs": ""}).get_json() == []


# --- tokens ------------------------------------------------------------------------------

USER = [{"role": "user", "content": "hé!"}]
CONVERSATION = "User: hé!\n"


def tokens(client: FlaskClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/tokenize", json=fields)
    assert answer.status_code == 200, answer.get_json()
    told: dict[str, Any] = answer.get_json()
    return told


def test_fields_of_vllm_are_answered_in_vllms_shape(client: FlaskClient) -> None:
    told = tokens(client, prompt="hé!", add_special_tokens=False)
    assert told == {
        "count": 4, "max_model_len": CONTEXT, "tokens": list("hé!".encode()), "token_strs": None,
    }  # fmt: skip
    for prompt, ids in (("", []), ("hé!", told["tokens"])):
        assert client.post("/detokenize", json={"tokens": ids}).get_json() == {"prompt": prompt}
    assert tokens(client, prompt="h!", return_token_strs=True)["token_strs"] == ["h", "!"]
    whole = tokens(client, messages=USER)["tokens"]
    assert bytes(whole).decode() == CONVERSATION + "Assistant:"
    without = tokens(client, messages=USER, add_generation_prompt=False)["tokens"]
    assert bytes(without).decode() == CONVERSATION


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", {"messages": "x"}),
        ("/invocations", {"prompt": 5}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {"tokens": "x"}),
    ],
)
def test_errors_have_the_shape_of_the_api_whose_fields_are_sent(
    client: FlaskClient, path: str, body: Json
) -> None:
    answer = client.post(path, json=body)
    param = next(iter(body))
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)
    answer = client.post("/invocations", json={"inputs": 5})
    assert (answer.status_code, answer.get_json()["error_type"]) == (422, "validation")
