"""What clients may send: the same limits on every API, no wider than the wire and float32, and
cheap to check; what they tell policies, of which no one can invent urgency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from flask.testing import FlaskClient
from pydantic import BaseModel, ValidationError
from werkzeug.datastructures import Headers

from api.defaults import SamplingDefaults
from api.document.paths import OPERATIONS
from api.http.body import of_schema
from api.http.errors import ApiError
from api.limits import LEAST_MASS
from api.native import InferenceRequest
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.signals import Signals, signal
from api.tgi.schemas import CompatRequest, GenerateRequest, Parameters, parse, sampling_of, validate
from engine.inference import Inference
from requested import Sampling
from serving.config import Config
from tests.support.dialects import NATIVE, OPENAI, PATHS, TGI, body, refused

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


def is_refused(path: str, **fields: Any) -> bool:
    return refusal(body(path, **fields), FORMS[path]) is not None


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
    name: str, apis: Sequence[str], fit: list[float], do_not_fit: list[float]
) -> None:
    for path in apis:
        for value in (*fit, *do_not_fit):
            assert is_refused(path, **{name: value}) == (value in do_not_fit), (path, value)


def sampling(path: str, **fields: Any) -> Sampling:
    data = body(path, **fields)
    if path == TGI:
        return sampling_of(parse(data, GenerateRequest).asked, fields.get("top_n_tokens"), None)
    wanted = of_schema(data, FORMS[path])
    if isinstance(wanted, InferenceRequest):
        return wanted.sampling(SamplingDefaults())
    assert isinstance(wanted, CompletionRequest | ChatRequest)
    return wanted.sampling(wanted.seed or 0, frozenset({2}), SamplingDefaults(), of_prompt=True)


ASKED: list[tuple[Sequence[str], str, Any, object]] = [
    (ALL, "temperature", 0.5, 0.5),
    (ALL, "top_p", 0.25, 0.25),
    (ALL, "top_p", 1e-300, LEAST_MASS),  # which is no other in float32 than 0
    (ALL, "top_k", 3, 3),
    (OPENAI, "top_k", -1, None),
    (OPENAI, "min_p", 0.25, 0.25),
    ([TGI], "typical_p", 0.5, 0.5),
    ((*OPENAI, TGI), "repetition_penalty", 1.5, 1.5),
    ((*OPENAI, TGI), "frequency_penalty", 0.5, 0.5),
    (OPENAI, "presence_penalty", 0.5, 0.5),
    (OPENAI, "logit_bias", {"5": -100, "7": 1.5}, ((5, -100.0), (7, 1.5))),
    (OPENAI, "min_tokens", 3, 3),
]


def test_each_api_asks_for_what_its_fields_say() -> None:
    for apis, name, value, asked in ASKED:
        for path in apis:
            found = sampling(path, tokens=9, **{name: value})
            assert getattr(found, name) == asked, path
            assert found.end_ids == ((2,) if name == "min_tokens" else ())


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
