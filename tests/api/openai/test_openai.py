"""OpenAI's API: answers against the hash model's reference, streamed and whole; what is refused, by
name, and what is taken all the same. What the fields of every API make of an answer that has a
shape, with the embedded model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st

from api.limits import MOST_STOP_CHARACTERS
from api.openai.fields.schemas import MOST_STOPS
from api.openai.generation import seed_of_choice
from serving.config import Config
from tests.api.conftest import serving
from tests.api.test_answers import expected
from tests.support.dialects import TGI, events
from tests.support.dialects import ask as ask_any
from tests.support.hash_app import END_ID, byte_tokenizer, spelled
from tests.support.hashed import reference, reference_logprob
from tests.support.openai_calls import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    PATHS,
    Json,
    ask,
    both,
    chat,
    chunks,
    complete,
    is_error,
)
from text.tokenizer import Detokenizer


@given(
    prompts=st.sampled_from(["x", ["ab"], ["a", "bc", "d"], [[97, 98]], [[97], [98, 99]]]),
    seed=st.integers(-(2**63), 2**64 - 1),
    n=st.integers(1, 5),
)
def test_prompts_of_text_or_token_ids_are_answered_in_order_each_choice_with_its_own_seed(
    client: FlaskClient, prompts: Any, seed: int, n: int
) -> None:
    answer = both(client, prompt=prompts, seed=seed, n=n, best_of=n)
    seeds = [seed_of_choice(seed, index) for index in range(n)]
    assert (seeds[0], len(set(seeds))) == (seed, n)
    assert all(0 <= derived < 2**63 for derived in seeds[1:])
    owns = [prompt.encode() if isinstance(prompt, str) else bytes(prompt) for prompt in prompts]
    texts = [expected(own, 16, seed)[0] for own in owns for seed in seeds]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"]["prompt_tokens"] == sum(map(len, owns))


@given(st.text(min_size=1, max_size=20))
@example("x" * CONTEXT)
def test_no_tokens_but_echo_and_logprobs_is_the_prompts_score(
    client: FlaskClient, prompt: str
) -> None:
    answer = complete(client, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    ids = list(prompt.encode())
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert others == [reference_logprob(ids[:i], ids[i]) for i in range(1, len(ids))]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids), 0)


def test_a_completion_has_16_tokens_and_a_chat_the_rest_of_the_context(
    client: FlaskClient,
) -> None:
    assert complete(client, ignore_eos=True)["usage"]["completion_tokens"] == 16
    assert chat(client, ignore_eos=True)["usage"]["total_tokens"] == CONTEXT
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat(client, ignore_eos=True, **{name: 3})["usage"]["completion_tokens"] == 3


@given(seed=st.integers(0, 999), number=st.integers(0, 9), ignore_eos=st.booleans())
def test_a_stop_token_ends_the_answer_as_the_end_token_does(
    client: FlaskClient, seed: int, number: int, ignore_eos: bool
) -> None:
    tokens = reference([ord("x")], 10, seed)
    stop = tokens[number]
    first = next(i for i, t in enumerate(tokens) if t == stop or (t == END_ID and not ignore_eos))
    fields: Json = {"seed": seed, "max_tokens": 20, "ignore_eos": ignore_eos}
    answer = complete(client, stop_token_ids=[stop], **fields)
    detokenizer = Detokenizer(byte_tokenizer())
    text = detokenizer.push(tokens[:first]) + detokenizer.finish()  # an ignored end token is text
    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == first + 1


def test_stop_strings_count_from_min_tokens_on(client: FlaskClient) -> None:
    first = spelled(reference([ord("x")], 1, 3))
    asked: Json = {"seed": 3, "max_tokens": 40, "ignore_eos": True, "stop": first}
    assert complete(client, **asked)["usage"]["completion_tokens"] == 1
    assert complete(client, **asked, min_tokens=5)["usage"]["completion_tokens"] > 5


SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}
STRICT = {"schema": {"type": "object", "additionalProperties": {"type": "null"}}, "strict": True}
WRONG: list[tuple[str, object]] = [
    ("n", 0), ("n", 129), ("n", True), ("stop", ["a", ""]), ("stop", ["s"] * (MOST_STOPS + 1)),
    ("stop", ["s" * (MOST_STOP_CHARACTERS + 1)]), ("logit_bias", {"a": 1}),
    ("logit_bias", {"5": 101}), ("logit_bias", {"257": 1}), ("logit_bias", [1]), ("stream", 1),
    ("stream_options", {"include_usage": True}), ("service_tier", "priority"),
    ("guided_regex", "(a"), ("guided_choice", []), ("guided_grammar", "start: missing"),
    ("structured_outputs", {}), ("structured_outputs", {"regex": "a", "choice": ["b"]}),
    ("guided_json", {"type": "strin"}), ("guided_json", "{"), ("min_tokens", CONTEXT),
    ("stop_token_ids", [257]), ("stop_token_ids", [1] * 257), ("allowed_token_ids", [1]),
    ("bad_words", ["x"]), ("use_beam_search", True), ("mirostat", 2), ("typical_p", 0.5),
    ("use_beam_search", 0), ("continue_final_message", 0.0), ("include_reasoning", 1),
    ("continue_final_message", True), ("chat_template", "{{ 1 }}"), ("grammar", "start: missing"),
    ("json_schema", {"type": "strin"}), ("regex", "("), ("n_predict", 3),
    ("truncate_prompt_tokens", -1),
]  # fmt: skip
WRONG_COMPLETION: list[tuple[str, object]] = [
    ("prompt", ""), ("prompt", None), ("prompt", [""]), ("prompt", ["a", 1]), ("prompt", [257]),
    ("prompt", [[]]), ("prompt", [[1], "a"]), ("prompt", [True]), ("best_of", 2), ("logprobs", 21),
    ("suffix", "end"),
]  # fmt: skip
WRONG_CHAT: list[tuple[str, object]] = [
    ("messages", None), ("messages", [{"role": "user"}]), ("messages", [{"content": "x"}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
    ("max_completion_tokens", 0), ("top_logprobs", 2), ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}), ("response_format", {"type": "regex"}),
    ("response_format", SCHEMA),
    ("response_format", {"type": "json_schema", "json_schema": STRICT}),
    ("audio", {"voice": "a"}), ("modalities", ["audio"]), ("prediction", {}),
    ("prediction", {"type": "content", "content": [{}] * 4097}), ("web_search_options", {}),
    ("chat_template_kwargs", {"messages": []}), ("chat_template_kwargs", {"x": "y" * 2**14}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [(path, *wrong) for path in PATHS for wrong in WRONG]
    + [(COMPLETIONS, *wrong) for wrong in WRONG_COMPLETION]
    + [(CHAT, *wrong) for wrong in WRONG_CHAT],
)
def test_a_wrong_or_not_offered_field_is_named_streamed_or_not(
    client: FlaskClient, path: str, field: str, value: object
) -> None:
    for stream in (False, True) if field != "stream_options" else (False,):
        answer = ask(client, path, **{"stream": stream, field: value})
        message = is_error(answer, 400, field)
        assert f"'{field}'" in message
        assert answer.get_json()["error"]["type"] == "invalid_request_error"
        assert len(message) < 500


def test_options_that_change_nothing_and_unknown_fields_are_accepted(client: FlaskClient) -> None:
    nothing: Json = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "user": "me",
        "modalities": ["text"], "metadata": {"a": "b"}, "bad_words": [], "typical_p": 1,
        "use_beam_search": False, "reasoning_effort": "low", "verbosity": "low",
        "chat_template_kwargs": {"enable_thinking": False}, "quite\nunknown": 5,
    }  # fmt: skip
    assert chat(client, seed=1, **nothing)["choices"] == chat(client, seed=1)["choices"]


def test_the_model_answers_to_each_of_its_names(tmp_path: Path) -> None:
    config = Config(mode="dynamic", data_dir=str(tmp_path), served_model_name="a/b,c")
    with serving(config) as renamed:
        cards = renamed.get("/v1/models").get_json()["data"]
        told = [(card["id"], card["max_model_len"]) for card in cards]
        assert told == [("a/b", CONTEXT), ("c", CONTEXT)]
        for card in cards:
            assert renamed.get(f"/v1/models/{card['id']}").get_json() == card
            assert complete(renamed, model=card["id"])["model"] == "a/b"
        assert renamed.get("/info").get_json()["model_id"] == "a/b"
        for stream in (False, True):
            unknown = ask(renamed, CHAT, model="embedded", stream=stream)
            assert '"a/b", "c"' in is_error(unknown, 404, "model")
            assert unknown.get_json()["error"]["code"] == "model_not_found"
        is_error(renamed.get("/v1/models/org/gpt-9"), 404, "model")


@pytest.mark.parametrize("placeholder", ["tgi", "dummy"])
def test_the_model_name_of_tgis_clients_is_accepted(client: FlaskClient, placeholder: str) -> None:
    assert chat(client, model=placeholder, max_tokens=1)["model"] == "embedded"
    for part in chunks(client, CHAT, model=placeholder, max_tokens=3):
        (choice,) = part["choices"]
        if placeholder == "tgi":  # whose client requires both in every delta
            assert choice["delta"].keys() >= {"role", "tool_calls"}
    is_error(client.get(f"/v1/models/{placeholder}"), 404, "model")


POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 9},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["x", "kind"],
    "additionalProperties": False,
}
SHAPE = re.compile(r'\{"x": [0-9], "kind": "[ab]"\}')
CODE = "[A-Z]{2}-[0-9]{3}"


def shaped(client: FlaskClient, **fields: Any) -> Json:
    return complete(client, CHAT, **{"max_tokens": 60, "seed": 1, **fields})


def content(told: Json) -> str:
    (choice,) = told["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"]
    return text


def named(schema: Json, **more: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, **more}}


POINTS: list[Json] = [
    {"response_format": named(POINT, strict=True)},
    {"response_format": named(POINT)},
    {"response_format": {"type": "json", "value": POINT}},
    {"response_format": {"type": "json_object", "value": json.dumps(POINT)}},
    {"response_format": {"type": "json_object", "schema": POINT}},
    {"response_format": {"type": "json_schema", "value": {"name": "point", "schema": POINT}}},
    {"structured_outputs": {"json": json.dumps(POINT)}},
    {"guided_json": POINT, "response_format": {"type": "text"}},
    {"guided_json": POINT, "min_tokens": 55, "top_p": 0.5, "logit_bias": {"5": 9}},
]
OTHERS: list[tuple[Json, str]] = [
    ({"guided_regex": CODE}, CODE),
    ({"structured_outputs": {"regex": CODE}}, CODE),
    ({"response_format": {"type": "regex", "value": CODE}}, CODE),
    ({"guided_choice": ["red", "green"]}, "red|green"),
    ({"guided_grammar": 'start: ("a" | "b") "!"'}, "[ab]!"),
    ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
    ({"json_schema": {"type": "boolean"}}, "true|false"),
    ({"structured_outputs": {"grammar": 'root ::= "a" [0-9]'}}, "a[0-9]"),
    ({"response_format": {"type": "json_object"}, "stop": "}", "max_tokens": 200}, r"(?s)\{.*"),
    ({"structured_outputs": {"json_object": True}, "stop": "}", "max_tokens": 200}, r"(?s)\{.*"),
]


@pytest.mark.parametrize(
    ("fields", "pattern"), [*((fields, SHAPE.pattern) for fields in POINTS), *OTHERS]
)
def test_a_constraint_is_kept_on_openais_api(
    embedded: FlaskClient, fields: Json, pattern: str
) -> None:
    assert re.fullmatch(pattern, content(shaped(embedded, **fields)))
    completion = complete(embedded, **{"max_tokens": 60, **fields})
    assert re.fullmatch(pattern, completion["choices"][0]["text"])


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"type": "json", "value": POINT}, SHAPE.pattern),
        ({"type": "json_schema", "value": {"name": "p", "schema": POINT}}, SHAPE.pattern),
        ({"type": "regex", "value": CODE}, CODE),
    ],
)
def test_a_grammar_is_kept_on_tgis_api(embedded: FlaskClient, grammar: Json, pattern: str) -> None:
    answer = ask_any(embedded, TGI, tokens=60, grammar=grammar, details=True).get_json()
    assert re.fullmatch(pattern, answer["generated_text"])
    assert answer["details"]["finish_reason"] == "eos_token"
    last = events(ask_any(embedded, TGI, tokens=60, grammar=grammar, stream=True))[-1]
    assert last["generated_text"] == answer["generated_text"]
