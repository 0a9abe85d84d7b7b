"""What clients may send: the same limits on every API, no wider than the wire and float32, and
cheap to check; what they tell policies, of which no one can invent urgency. What a model says of
them: its context, into which prompt and answer must fit on every API, and the sampling defaults of
its `generation_config.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from flask.testing import FlaskClient
from pydantic import BaseModel, ValidationError
from werkzeug.datastructures import Headers

from api.http.body import of_schema
from api.http.errors import ApiError
from api.limits import LEAST_MASS
from api.native import InferenceRequest
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.signals import Signals, signal
from api.tgi.schemas import CompatRequest, GenerateRequest, Parameters, parse, validate
from engine.inference import Inference
from seams import Opening, Sampling
from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import NATIVE, OPENAI, OPERATIONS, PATHS, TGI, Json, ask, body, refused
from tests.support.hash_app import END_ID, byte_tokenizer
from tests.support.hash_model import HashModel
from text.tokenizer import Tokenizer

MANY = 20_000
MOST_ERRORS = 64
CONFIG = Config(mode="dynamic", max_best_of=64, max_top_n_tokens=100)
USER = {"role": "user", "content": "x"}
BODIES: set[type[BaseModel]] = {
    form
    for operation in OPERATIONS.values()
    for form in (get_args(operation.body) or [operation.body])
    if isinstance(form, type) and issubclass(form, BaseModel)
}
ELEMENTS: list[Any] = [None, {}, [], "", "x", -1, 1.5, {"type": "image"}, {"role": "x"}, [""], [-1]]
ARRAYS: list[Any] = [[element] * MANY for element in ELEMENTS]
POISONS = [
    *ARRAYS,
    *({f"{i}": element for i in range(MANY)} for element in ELEMENTS),
    {"messages": ARRAYS[0]},
    *([{**USER, field: array}] for field in ("content", "tool_calls") for array in ARRAYS),
]


def refusal(data: dict[str, Any], schema: type[BaseModel]) -> ApiError | None:
    try:
        if issubclass(schema, GenerateRequest | CompatRequest):
            validate(parse(data, schema).asked, CONFIG, streaming=False)
        else:
            of_schema(data, schema)
    except ApiError as error:
        return error
    return None


def errors_of(data: dict[str, Any], schema: type[BaseModel]) -> int:
    """How many pydantic found."""
    error = refusal(data, schema)
    found = error and error.__context__
    return found.error_count() if isinstance(found, ValidationError) else 0


@pytest.mark.parametrize("schema", sorted(BODIES, key=str))
def test_a_body_of_wrong_elements_is_refused_at_the_first_ones(schema: type[BaseModel]) -> None:
    names = [field.alias or name for name, field in schema.model_fields.items()]
    for poison in POISONS:
        for name in names:
            assert errors_of({name: poison}, schema) <= MOST_ERRORS, name
        if "parameters" in names:
            for name in Parameters.model_fields:
                assert errors_of({"parameters": {name: poison}}, schema) <= MOST_ERRORS, name
    assert errors_of({f"unknown-{i}": 1 for i in range(MANY)}, schema) <= MOST_ERRORS


# --- numbers ------------------------------------------------------------------------------------
FORMS: dict[str, type[BaseModel]] = {
    NATIVE: InferenceRequest,
    OPENAI[0]: CompletionRequest,
    OPENAI[1]: ChatRequest,
    TGI: GenerateRequest,
}
ALL = tuple(FORMS)


@pytest.mark.parametrize(
    ("name", "apis", "fit", "do_not_fit"),
    [
        ("seed", ALL, [-(2**63), 2**64 - 1], [-(2**63) - 1, 2**64]),
        ("top_k", ALL, [1, 2**31 - 1], [-2, 2**31, 2**32]),
        ("temperature", ALL, [1e-6, 1e6], [-1.0, 9e-7, 1.1e6]),
        ("top_p", ALL, [1e-300, 0.99], [-1e-300, 1.1]),
        ("top_p", [TGI], [], [0, 1.0]),
        ("typical_p", [TGI], [0.5], [0, 1]),
        ("top_k", [TGI], [], [0]),
        ("repetition_penalty", (*OPENAI, TGI), [1e-6, 1e6], [1e-46, 9e-7, 1.1e6]),
        ("frequency_penalty", (*OPENAI, TGI), [-2, 2.0], [-2.1, 2.1]),
        ("num_tokens", [NATIVE], [1, 2**31 - 1], [0, 2**31]),
        ("max_tokens", OPENAI, [1, 2**31 - 1], [-1, 2**31]),
        ("max_new_tokens", [TGI], [1, 2**31 - 1], [0, 2**31]),
    ],
)
def test_a_number_has_the_same_limits_on_every_api(
    name: str, apis: Sequence[str], fit: list[Any], do_not_fit: list[Any]
) -> None:
    for path in apis:
        for value in (*fit, *do_not_fit):
            found = refusal(body(path, **{name: value}), FORMS[path])
            assert (found is not None) == (value in do_not_fit), (path, value)


GOOD: dict[str, Any] = {
    "user": "u",
    "program": "p",
    "priority": 3,
    "ttft_target_s": 0.5,
    "tpot_target_s": 0.05,
    "predicted_tokens": 7,
}
HEADERS = [("X-Priority", "high"), ("X-Priority", "-1"), ("X-Priority", "1_0"),
           ("X-Priority", "9" * 99), ("X-User-Id", "u" * 300)]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_api_takes_all_signals_and_refuses_wrong_headers(
    client: FlaskClient, path: str
) -> None:
    headers = {"X-User-Id": "u", "X-Program-Id": "p", "X-Priority": "2"}
    assert client.post(path, json=body(path, **GOOD), headers=headers).status_code == 200
    assert "priority" in refused(client.post(path, json=body(path, priority=-1)), path)
    for header, text in HEADERS:
        refused(client.post(path, json=body(path), headers={header: text}), path)


def signalled(
    owner: str = "", headers: dict[str, str] | None = None, most_urgent: int = 0, **fields: object
) -> Inference:
    inference = Inference([1], 9, Sampling(), 0.0)
    asked = Signals.model_validate(fields)
    signal([inference], asked, Headers(headers or {}), owner, most_urgent)
    return inference


def test_a_field_overrides_its_header_and_with_keys_the_user_is_the_key() -> None:
    with pytest.raises(ApiError, match=r"priority -4 is more urgent .* -3 or more \(--max-pri"):
        signalled(most_urgent=-3, priority=-4)
    headers = {"X-User-Id": "a", "X-Program-Id": "a", "X-Priority": "5"}
    told, field = signalled(headers=headers), signalled(user="b", program="b", priority=1)
    both = signalled(headers=headers, user="b", program="b", priority=1)
    assert (both.user, both.program, both.priority) == (field.user, field.program, 1)
    assert (told.priority, told.user == both.user) == (5, False)
    a, b, other = signalled("key", user="a"), signalled("key", user="b"), signalled("other")
    assert a.user == b.user != other.user
    assert len({a.end_user, b.end_user, other.end_user}) == 3
    assert signalled("key").end_user == signalled().user == 0
    within: list[dict[str, Any]] = [{"owner": "key"}, {"owner": "other"}, {}, {"user": "u"}]
    assert len({signalled(program="p", **of).program for of in within}) == len(within)


# --- the model's context --------------------------------------------------------------------------

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
    for path, asked in (
        ("/v1/completions", {"prompt": ["a", LONG]}),
        ("/", {"inputs": ["a", LONG]}),
    ):
        assert "at least" in refused(limited.post(path, json=asked), path)
    assert max(encoded, default=0) <= 1


def test_what_is_cut_or_only_counted_may_be_longer(limited: FlaskClient) -> None:
    assert ask(limited, TGI, LONG, truncate=8).status_code == 200
    told = limited.post("/tokenize", json={"prompt": LONG}).get_json()
    assert (told["count"], told["max_model_len"]) == (len(LONG), LIMIT)


# --- defaults -----------------------------------------------------------------------------------

# as Qwen2.5 and fine-tunes of it publish them
QWEN = {
    "bos_token_id": 151643, "pad_token_id": 151643, "do_sample": True,
    "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8,
    "top_k": 20, "max_new_tokens": 40, "transformers_version": "4.37.0",
}  # fmt: skip
OF_QWEN = {name: QWEN[name] for name in
           ("repetition_penalty", "temperature", "top_p", "top_k", "max_new_tokens")}  # fmt: skip
PLAIN: Json = {
    "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0,
    "typical_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": (),
    "min_tokens": 0, "end_ids": (),
}  # fmt: skip
OWN = [path for path in PATHS if path != TGI]
LATER = OWN[1:]  # OpenAI's
# by whom, what is asked, and how the sampling differs from that
ASKED: list[tuple[Sequence[str], Json, Json]] = [
    (OWN, {}, {}),
    (PATHS, {"temperature": 0.5, "top_p": 0.25, "top_k": 3}, {}),
    (PATHS, {"temperature": 1.0, "top_p": 1e-300}, {"top_p": LEAST_MASS}),  # in float32 it is 0
    ([NATIVE], {"top_k": None}, {}),
    (LATER, {"top_k": -1, "repetition_penalty": 1.0}, {"top_k": None}),
    (LATER, {"temperature": None, "top_k": 0, "min_p": 0.2}, {"temperature": 0.7, "top_k": None}),
    (OPENAI, {"logit_bias": {"5": -100, "7": 1.5}}, {"logit_bias": ((5, -100.0), (7, 1.5))}),
    (OPENAI, {"min_tokens": 3, "presence_penalty": 0.5}, {"end_ids": (END_ID,)}),
    ((*OPENAI, TGI), {"repetition_penalty": 1.5, "frequency_penalty": 0.25}, {}),
    ([TGI], {"typical_p": 0.5}, {"temperature": 1.0}),
]


@pytest.mark.parametrize("used", [True, False])
def test_each_api_asks_for_what_its_fields_say_and_else_for_the_models_defaults(
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
        for paths, said, differing in ASKED if used else [([NATIVE], {}, {})]:
            for path in paths:
                answer = ask(client, path, "a", 9, **said)
                assert answer.status_code == 200, answer.text
                of_api = {"temperature": 0.0} if path == TGI else OF_QWEN if used else {}
                expected = {**PLAIN, **of_api, **said, **differing}
                found = {name: getattr(asked[-1], name) for name in PLAIN}
                assert found == {name: expected[name] for name in PLAIN}, path
                if path == "/v1/responses":
                    assert answer.get_json()["temperature"] == expected["temperature"]
        told = ask(client, LATER[1], "a", ignore_eos=True, max_tokens=None).get_json()
        most = QWEN["max_new_tokens"] if used else 1024 - told["usage"]["prompt_tokens"]
        assert told["usage"]["completion_tokens"] == most


def test_a_server_without_grammar_support_refuses_constraints() -> None:
    with serving(Config(mode="dynamic", disable_grammar_support=True)) as client:
        asked = {"messages": [{"role": "user", "content": "x"}], "guided_regex": "a"}
        answer = client.post("/v1/chat/completions", json=asked)
        error = answer.get_json()["error"]
        assert (answer.status_code, error["param"]) == (400, "guided_regex")
        assert "--disable-grammar-support" in error["message"]
        grammar = {"grammar": {"type": "regex", "value": "a"}}
        answer = client.post("/generate", json={"inputs": "x", "parameters": grammar})
        assert answer.status_code == 422
        assert "--disable-grammar-support" in answer.get_json()["error"]
