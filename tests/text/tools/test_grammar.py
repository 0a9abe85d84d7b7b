"""The grammar of calls: what it describes is parsed as calls, and it describes nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from requested import Constraint
from runtime.grammar.grammars import Grammars
from text.tokenizer import Detokenizer, Tokenizer
from text.tools.forms import HERMES, LLAMA, MISTRAL, CallForm
from text.tools.grammar import grammar_of_calls, of_regex, of_schema
from text.tools.parsing import CallParser, CallPiece, ForcedCallParser, Parser

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


def calls_in(parser: Parser, answer: str) -> list[tuple[str, Any]]:
    pieces = [*parser.push(answer), *parser.finish()]
    assert all(isinstance(piece, CallPiece) for piece in pieces)
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        assert isinstance(piece, CallPiece)
        if piece.name is not None:
            calls.append((piece.name, ""))
        calls[-1] = calls[-1][0], calls[-1][1] + piece.arguments
    return [(name, json.loads(arguments)) for name, arguments in calls]


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
    ):
        either = grammar(form, answer=answer)
        assert accepts(either, right)
        assert not accepts(either, wrong)
        calls = written(form, PARIS, NOW, marked=True)
        assert accepts(either, calls)
        assert calls_in(CallParser(form, SCHEMAS), calls) == [PARIS, NOW]


def test_a_mark_that_is_a_special_token_is_that_token() -> None:
    """A vocabulary has no other way to write it, and the answer is parsed with its name."""
    table = {byte: bytes([byte]) for byte in range(256)} | {256: b"[TOOL_CALLS]", 257: b"</s>"}
    special = {"[TOOL_CALLS]": 256, "</s>": 257}
    tokenizer = Tokenizer(lambda text: list(text.encode()), table, [257], special)
    rules = grammar_of_calls(MISTRAL, SCHEMAS, several=False, special_ids=special)
    matcher = Grammars(lambda: tokenizer).matcher(Constraint("lark", rules))
    answer = written(MISTRAL, PARIS)
    ids = [256, *answer.removeprefix("[TOOL_CALLS]").encode()]
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()
    assert Detokenizer(tokenizer).push(ids) == answer


def test_objects_that_a_schema_leaves_open_stay_so_where_it_says_more() -> None:
    open_schema = {"type": "object", "patternProperties": {"^x": {"type": "integer"}}}
    opened = grammar_of_calls(HERMES, {"f": open_schema}, several=False, special_ids={})
    assert accepts(opened, written(HERMES, ("f", {"x1": 5})))
