"""Calls in answers that a grammar keeps to them: their arguments do not wait for their end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.text.tools.test_parsing import FORMS, MOST, NAMES, TEXT, WRITTEN, cut, read, whole
from text.tools.forms import HERMES, MISTRAL, CallForm
from text.tools.kept import ForcedCallParser, StrictCallParser
from text.tools.parsing import CallPiece


def write(
    form: CallForm, calls: Sequence[tuple[str, Any]], indent: int | None = None, mark: str = ""
) -> str:
    """As the grammar has it, but for the indent. `mark`: what precedes each call."""
    objects = [{"name": name, form.arguments: arguments} for name, arguments in calls]
    if form.in_array:
        return f"{form.opening} {json.dumps(objects, indent=indent)}"
    texts = [json.dumps(call, indent=indent, ensure_ascii=False) for call in objects]
    if form.bare:
        return mark + "; ".join(texts)
    return "\n".join(f"{form.opening}\n{text}\n{form.closing}" for text in texts)


@given(FORMS, WRITTEN, st.sampled_from([None, 2]), st.data())
def test_arguments_of_forced_calls_arrive_in_pieces(
    form: CallForm, calls: list[tuple[str, Any]], indent: int | None, data: st.DataObject
) -> None:
    answer = write(form, calls, indent)
    text, found = read(ForcedCallParser(), cut(data.draw, answer))
    assert text == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
    begun = data.draw(st.integers(0, len(answer)))
    _, parts = read(ForcedCallParser(), list(answer[:begun]))
    for (name, part), (all_of_it, arguments) in zip(parts, found, strict=False):
        assert name == all_of_it
        assert arguments.startswith(part)


def test_a_forced_calls_arguments_do_not_wait_for_its_end() -> None:
    parser = ForcedCallParser()
    assert parser.push('<tool_call>\n{"name": "add", "arguments": ') == []
    assert parser.push('{"a": 1') == [CallPiece(0, "add", ""), CallPiece(0, None, '{"a": 1')]
    assert parser.push("2}") == [CallPiece(0, None, "2}")]


@given(FORMS, st.lists(TEXT | WRITTEN, max_size=5), MOST, st.data())
def test_a_text_with_calls_is_read_as_without_a_grammar(
    form: CallForm, parts: list[Any], most_calls: int | None, data: st.DataObject
) -> None:
    answer = "".join(
        part if isinstance(part, str) else write(form, part, mark=form.opening) for part in parts
    )
    expected = whole(form, answer, most_calls)
    for pieces in ([answer], cut(data.draw, answer), list(answer)):
        text, calls = read(StrictCallParser(form, NAMES, most_calls), pieces)
        assert text == expected[0]
        assert [(name, json.loads(of)) for name, of in calls] == [
            (name, json.loads(of)) for name, of in expected[1]
        ]


@given(FORMS, WRITTEN, st.data())
def test_a_text_that_ends_within_a_call_has_a_part_of_it(
    form: CallForm, calls: list[tuple[str, Any]], data: st.DataObject
) -> None:
    answer = f"So: {write(form, calls, mark=form.opening)}"
    begun = answer[: data.draw(st.integers(0, len(answer)))]
    text, parts = read(StrictCallParser(form, NAMES), list(begun))
    assert text[:4] == begun[:4]
    assert len(parts) <= len(calls)
    for (name, part), (whole_name, arguments) in zip(parts, calls, strict=False):
        assert name == whole_name
        written = [json.dumps(arguments, ensure_ascii=ascii) for ascii in (True, False)]
        assert any(one.startswith(part) for one in written)


def test_arguments_within_a_text_do_not_wait_for_their_end() -> None:
    parser = StrictCallParser(HERMES, NAMES)
    assert parser.push('So:\n<tool_call>\n{"name": "add", "arguments": ') == ["So:\n"]
    assert parser.push('{"a": 1') == [CallPiece(0, "add", ""), CallPiece(0, None, '{"a": 1')]
    assert parser.push("2}") == [CallPiece(0, None, "2}")]
    assert parser.push("}\n</tool_call> and") == [" and"]


def test_an_array_is_complete_with_its_last_wanted_call() -> None:
    parser = StrictCallParser(MISTRAL, NAMES, most_calls=1)
    told = parser.push('[TOOL_CALLS] [{"name": "add", "arguments": {}')
    assert told == [CallPiece(0, "add", ""), CallPiece(0, None, "{}")]
    assert not parser.complete
    parser.push("}]")
    assert parser.complete
