"""The grammar of calls: what it describes is parsed as calls, and it describes nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from requested import Constraint
from runtime.grammar.grammars import Grammars
from text.tokenizer import Detokenizer, Tokenizer
from text.tools.forms import HERMES, LLAMA, MISTRAL, CallForm
from text.tools.grammar import (
    grammar_of_calls,
    grammar_of_text_with_calls,
    of_lark,
    of_regex,
    of_schema,
)
from text.tools.kept import ForcedCallParser, StrictCallParser
from text.tools.parsing import CallParser, CallPiece, Parser

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "required": ["city"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {**CITY, "$defs": {"c": {"type": "string", "maxLength": 5}}},
    "now": {"type": "object", "properties": {}},
}
PARIS: tuple[str, dict[str, Any]] = ("weather", {"city": "Paris"})
NOW: tuple[str, dict[str, Any]] = ("now", {})
FORMS = pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA], ids=lambda form: form.name)


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is one of the grammar's."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def written(form: CallForm, *calls: tuple[str, dict[str, Any]], marked: bool = False) -> str:
    """As each family's templates write calls."""
    texts = [json.dumps({"name": name, form.arguments: of}) for name, of in calls]
    if form is MISTRAL:
        return f"[TOOL_CALLS] [{', '.join(texts)}]"
    if form is LLAMA:
        return "; ".join(f"<|python_tag|>{text}" if marked else text for text in texts)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


def grammar(form: CallForm, *, several: bool = True, answer: str | None = None) -> str:
    return grammar_of_calls(form, SCHEMAS, several=several, special_ids={}, answer=answer)


def read(parser: Parser, answer: str) -> tuple[str, list[tuple[str, Any]]]:
    """The text, and the calls with their arguments."""
    texts, calls = [], list[tuple[str, str]]()
    for piece in [*parser.push(answer), *parser.finish()]:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        assert isinstance(piece, CallPiece)
        if piece.name is not None:
            calls.append((piece.name, ""))
        calls[-1] = calls[-1][0], calls[-1][1] + piece.arguments
    return "".join(texts), [(name, json.loads(arguments)) for name, arguments in calls]


def calls_in(parser: Parser, answer: str) -> list[tuple[str, Any]]:
    text, calls = read(parser, answer)
    assert text == ""
    return calls


@FORMS
def test_calls_as_templates_write_them_are_described_and_parsed(form: CallForm) -> None:
    for calls in ([PARIS], [NOW, PARIS]):
        answer = written(form, *calls)
        assert accepts(grammar(form), answer)
        assert calls_in(ForcedCallParser(), answer) == calls
        assert calls_in(CallParser(form, SCHEMAS), answer) == calls
    assert not accepts(grammar(form, several=False), written(form, PARIS, NOW))


@FORMS
def test_nothing_else_is_described(form: CallForm) -> None:
    for call in (
        ("rain", {"city": "Paris"}),
        ("weather", {}),
        ("weather", {"city": 5}),
        ("weather", {"city": "Berlin"}),
        ("weather", {"city": "Paris", "more": 1}),
        ("now", {"city": "Paris"}),
    ):
        assert not accepts(grammar(form), written(form, call))
    assert not accepts(grammar(form), "")
    assert not accepts(grammar(form), "It rains.")


@FORMS
def test_an_answer_with_a_format_may_call_all_the_same(form: CallForm) -> None:
    of_answer = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for answer, right, wrong in (
        (of_schema(of_answer), '{"a": 5}', '{"a": "x"}'),
        (of_regex(r"[a-z]+/\d\/\\?"), "ab/1/", "ab/x/"),
        (of_lark('start: word "!"\nword: WORD | "}"\nWORD: "red" | "green"'), "red!", "blue!"),
        (of_lark('start: word "!"\nword: WORD | "}"\nWORD: "red" | "green"'), "}!", "!"),
    ):
        either = grammar(form, answer=answer)
        assert accepts(either, right)
        assert not accepts(either, wrong)
        calls = written(form, PARIS, NOW, marked=True)
        assert accepts(either, calls)
        assert calls_in(CallParser(form, SCHEMAS), calls) == [PARIS, NOW]


def free(form: CallForm, *, several: bool = True) -> str:
    return grammar_of_text_with_calls(form, SCHEMAS, several=several, special_ids={})


@FORMS
@pytest.mark.parametrize(
    "text", ["", "\n", "It rains.", "a < b, <tool [TOOL_ <|python", "é <", "<"]
)
def test_a_text_that_may_call_need_not(form: CallForm, text: str) -> None:
    for several in (True, False):
        assert accepts(free(form, several=several), text)


@FORMS
@pytest.mark.parametrize("text", ['[{"a": 5}]', '{"a": 5}', ' \n{"name": 5}'])
def test_an_answer_in_json_may_be_a_text_where_calls_have_a_mark(form: CallForm, text: str) -> None:
    assert accepts(free(form), text) == (not form.bare)
    assert accepts(free(form), f"So: {text}")


@FORMS
def test_a_text_may_have_calls_at_its_beginning_and_within(form: CallForm) -> None:
    calls, end = [NOW, PARIS], "\nThat is all."
    for before in ("", "So: "):
        answer = before + written(form, *calls, marked=bool(before))
        for behind in ("", end):
            assert accepts(free(form), answer + behind)
            assert read(CallParser(form, SCHEMAS), answer + behind) == (before + behind, calls)
    assert not accepts(free(form, several=False), written(form, NOW, PARIS))


@FORMS
def test_what_begins_like_a_call_is_one_and_keeps_its_schema(form: CallForm) -> None:
    for call in (
        ("rain", {"city": "Paris"}),
        ("weather", {}),
        ("weather", {"city": 5}),
        ("weather", {"city": "Paris", "more": 1}),
    ):
        for before in ("", "So: "):
            answer = before + written(form, call, marked=bool(before))
            assert not accepts(free(form), answer)
            assert not accepts(free(form), f"{answer} and more")
    assert not accepts(free(form), f"So: {form.opening}")
    assert not accepts(free(form), f"So: {written(form, PARIS, marked=True)[:-16]}")


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<tool", "{", "[", "}", "]",
    ";", " ", "\n", "x", '"', "weather", "now", "rain", "Paris", '{"city": 5}',
    '{"name": "weather", "arguments": ', '{"name": "now", "parameters": {}}',
    '{"parameters": {}, "name": "now"}',
]  # fmt: skip


@FORMS
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
            forced = matcher.compute_ff_tokens()
            assert matcher.consume_tokens(forced)
            ids += forced
        answer = tokenizer.decode_str(ids)
        told = read(CallParser(form, [*SCHEMAS, "rain"]), answer)
        if matcher.is_accepting():
            assert read(StrictCallParser(form, SCHEMAS), answer) == told
        _, calls = told
        for name, arguments in calls:
            jsonschema.validate(arguments, {**SCHEMAS[name], "additionalProperties": False})
        found += len(calls)
    assert found > 50


def test_a_mark_that_is_a_special_token_is_that_token() -> None:
    """A vocabulary has no other way to write it, and the answer is parsed with its name."""
    table = {byte: bytes([byte]) for byte in range(256)} | {256: b"[TOOL_CALLS]", 257: b"</s>"}
    special = {"[TOOL_CALLS]": 256, "</s>": 257}
    tokenizer = Tokenizer(lambda text: list(text.encode()), table, [257], special)
    grammars = Grammars(lambda: tokenizer)
    answer = written(MISTRAL, PARIS)
    ids = [256, *answer.removeprefix("[TOOL_CALLS]").encode()]
    assert Detokenizer(tokenizer).push(ids) == answer
    for make, before in ((grammar_of_calls, ""), (grammar_of_text_with_calls, "So: ")):
        rules = make(MISTRAL, SCHEMAS, several=False, special_ids=special)
        constraint = Constraint("lark", rules)
        grammars.compile(constraint)
        matcher = grammars.compiled(constraint).matcher
        written_ids = [*before.encode(), *ids]
        assert matcher.try_consume_tokens(written_ids) == len(written_ids)
        assert matcher.is_accepting()


def test_objects_that_a_schema_leaves_open_stay_so_where_it_says_more() -> None:
    open_schema = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
    opened = grammar_of_calls(HERMES, {"f": open_schema}, several=False, special_ids={})
    assert accepts(opened, written(HERMES, ("f", {"x1": 5})))
