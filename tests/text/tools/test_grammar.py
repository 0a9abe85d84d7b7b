"""The grammar of calls: what it describes is parsed as calls, and it describes nothing else."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from runtime.grammar.grammars import Grammars
from seams import Constraint
from tests.text.tools.calls import EACH_FORM, Call, loaded, read, write
from text.tokenizer import Detokenizer, Tokenizer
from text.tools.forms import HERMES, MISTRAL, CallForm
from text.tools.grammar import (
    grammar_of_calls,
    grammar_of_text_with_calls,
    of_lark,
    of_regex,
    of_schema,
)
from text.tools.parsing import (
    CallOrTextParser,
    CallParser,
    ForcedCallParser,
    StrictCallParser,
)

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "required": ["city"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {**CITY, "$defs": {"c": {"type": "string", "maxLength": 5}}},
    "now": {"type": "object", "properties": {}},
}
PARIS: Call = ("weather", {"city": "Paris"})
NOW: Call = ("now", {})
WRONG: list[Call] = [
    ("rain", {"city": "Paris"}),
    ("weather", {}),
    ("weather", {"city": 5}),
    ("weather", {"city": "Berlin"}),
    ("weather", {"city": "Paris", "more": 1}),
    ("now", {"city": "Paris"}),
]


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is one of the grammar's."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def forced(form: CallForm, *, several: bool = True, answer: str | None = None) -> str:
    return grammar_of_calls(form, SCHEMAS, several=several, special_ids={}, answer=answer)


def free(form: CallForm, *, several: bool = True) -> str:
    return grammar_of_text_with_calls(form, SCHEMAS, several=several, special_ids={})


@EACH_FORM
def test_calls_alone_are_described_and_parsed(form: CallForm) -> None:
    for calls in ([PARIS], [NOW, PARIS]):
        answer = write(form, calls, marked=False)
        assert accepts(forced(form), answer)
        assert accepts(forced(form, several=False), answer) == (len(calls) == 1)
        assert loaded(read(ForcedCallParser(), [answer])) == ("", calls)
    for text in ("", "It rains.", *(write(form, [call], marked=False) for call in WRONG)):
        assert not accepts(forced(form), text)


@EACH_FORM
def test_an_answer_with_a_format_may_call_all_the_same(form: CallForm) -> None:
    of_answer = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    calls = write(form, [PARIS, NOW])
    for answer, right, wrong in (
        (of_schema(of_answer), '{"a": 5}', '{"a": "x"}'),
        (of_regex(r"[a-z]+/\d\/\\?"), "ab/1/", "ab/x/"),
        (of_lark('start: word "!"\nword: WORD | "}"\nWORD: "red" | "green"'), "}!", "blue!"),
    ):
        either = forced(form, answer=answer)
        assert [accepts(either, text) for text in (right, wrong, calls)] == [True, False, True]
        assert read(CallOrTextParser(form.opening), list(right)) == (right, [])
    assert loaded(read(CallOrTextParser(form.opening), list(calls))) == ("", [PARIS, NOW])
    for end in range(len(form.opening), len(calls)):  # the end of the context, within a call
        text, begun = read(CallOrTextParser(form.opening), [calls[:end]])
        assert text == ""
        assert [name for name, _ in begun] == ["weather", "now"][: len(begun)]


@EACH_FORM
def test_a_text_that_may_call_need_not(form: CallForm) -> None:
    for text in ("", "\n", "It rains.", "a < b, <tool [TOOL_ <|python", "é <", "<"):
        for several in (True, False):
            assert accepts(free(form, several=several), text)
    for text in ('[{"a": 5}]', '{"a": 5}', ' \n{"name": 5}'):
        assert accepts(free(form), text) == (not form.bare)
        assert accepts(free(form), f"So: {text}")


@EACH_FORM
def test_what_begins_like_a_call_at_the_beginning_of_a_text_or_within_is_one(
    form: CallForm,
) -> None:
    for before in ("", "So: "):
        marked = bool(before)
        answer = before + write(form, [NOW, PARIS], marked=marked)
        for behind in ("", "\nThat is all."):
            assert accepts(free(form), answer + behind)
            told = loaded(read(CallParser(form, SCHEMAS), [answer + behind]))
            assert told == (before + behind, [NOW, PARIS])
        assert not accepts(free(form, several=False), answer)
        for call in WRONG:
            wrong = before + write(form, [call], marked=marked)
            assert not accepts(free(form), wrong)
            assert not accepts(free(form), f"{wrong} and more")
    assert not accepts(free(form), f"So: {form.opening}")
    assert not accepts(free(form), f"So: {write(form, [PARIS])[:-16]}")


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<tool", "{", "[", "}", "]",
    ";", " ", "\n", "x", '"', "weather", "now", "rain", "Paris", '{"city": 5}',
    '{"name": "weather", "arguments": ', '{"name": "now", "parameters": {}}',
    '{"parameters": {}, "name": "now"}',
]  # fmt: skip


@EACH_FORM
def test_no_text_has_a_call_that_its_schema_excludes(form: CallForm) -> None:
    """Texts are written of pieces, each as far as the grammar allows it, and then parsed."""
    drawn, tokenizer = random.Random(form.name), LLTokenizer("byte")
    start = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(free(form)), log_level=0)
    found = 0
    for _ in range(300):
        matcher, ids = start.deep_copy(), list[int]()
        for piece in drawn.choices(FRAGMENTS, k=30):
            tried = tokenizer.tokenize_str(piece)
            ids += tried[: matcher.try_consume_tokens(tried)]
            jumped = matcher.compute_ff_tokens()
            assert matcher.consume_tokens(jumped)
            ids += jumped
        answer = tokenizer.decode_str(ids)
        told = loaded(read(CallParser(form, [*SCHEMAS, "rain"]), [answer]))
        if matcher.is_accepting():
            assert loaded(read(StrictCallParser(form, SCHEMAS), [answer])) == told
        for name, arguments in told[1]:
            jsonschema.validate(arguments, {**SCHEMAS[name], "additionalProperties": False})
        found += len(told[1])
    assert found > 50


@pytest.mark.parametrize(
    ("make", "before"), [(grammar_of_calls, ""), (grammar_of_text_with_calls, "So: ")]
)
def test_a_mark_that_is_a_special_token_is_that_token(make: Any, before: str) -> None:
    """A vocabulary has no other way to write it, and the answer is parsed with its name."""
    table = {byte: bytes([byte]) for byte in range(256)} | {256: b"[TOOL_CALLS]", 257: b"</s>"}
    special = {"[TOOL_CALLS]": 256, "</s>": 257}
    tokenizer = Tokenizer(lambda text: list(text.encode()), table, [257], special)
    answer = write(MISTRAL, [PARIS])
    ids = [256, *answer.removeprefix("[TOOL_CALLS]").encode()]
    assert Detokenizer(tokenizer).push(ids) == answer
    constraint = Constraint("lark", make(MISTRAL, SCHEMAS, several=False, special_ids=special))
    grammars = Grammars(lambda: tokenizer)
    grammars.compile(constraint)
    matcher = grammars.compiled(constraint).matcher
    written = [*before.encode(), *ids]
    assert matcher.try_consume_tokens(written) == len(written)
    assert matcher.is_accepting()


def test_objects_that_a_schema_leaves_open_stay_so_where_it_says_more() -> None:
    open_schema = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
    opened = grammar_of_calls(HERMES, {"f": open_schema}, several=False, special_ids={})
    assert accepts(opened, write(HERMES, [("f", {"x1": 5})]))
