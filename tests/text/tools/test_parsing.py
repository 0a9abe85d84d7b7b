"""Calls in answers: every cut of an answer gives the same, and no text is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.text.tools.calls import CALLS, EACH_FORM, FORMS, NAMES, TEXT, cut, loaded, read, write
from text.tools import parsing
from text.tools.extent import Extent
from text.tools.forms import HERMES, LLAMA, MISTRAL, CallForm
from text.tools.parsing import (
    MOST_CHARACTERS,
    CallParser,
    ForcedCallParser,
    StrictCallParser,
)

MOST = st.sampled_from([None, 1, 2])


def whole(
    form: CallForm, answer: str, most_calls: int | None = None
) -> tuple[str, list[tuple[str, str]]]:
    return read(CallParser(form, NAMES, most_calls), [answer])


PARIS = ("weather", '{"city": "Paris"}')
SUM = ("add", '{"a": 1, "b": [2.5, {"c": "}]\\""}]}')
NONE = ("add", "{}")
HERMES_PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_SUM = f'<tool_call>{{"arguments": {SUM[1]}, "name": "add"}}</tool_call>'
LLAMA_PARIS = '{"name": "weather", "parameters": {"city": "Paris"}}'
ARRAY = '[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add"}]'


@pytest.mark.parametrize(
    ("form", "answer", "text", "calls"),
    [
        (HERMES, f"\n\n{HERMES_PARIS}\n{HERMES_SUM}\n", "", [PARIS, SUM]),
        (HERMES, f"One\n{HERMES_PARIS} two\n", "One\n two\n", [PARIS]),
        (HERMES, f"<tool_call>{ARRAY}</tool_call>", "", [PARIS, NONE]),  # SmolLM2's
        (HERMES, HERMES_PARIS.removesuffix("</tool_call>"), "", [PARIS]),
        (HERMES, HERMES_PARIS.replace(PARIS[1], json.dumps(PARIS[1])), "", [PARIS]),
        (HERMES, f"<tool_call>{{<tool_call>{HERMES_PARIS}", "<tool_call>{<tool_call>", [PARIS]),
        (MISTRAL, f"Well, [TOOL_CALLS]{ARRAY}", "Well, ", [PARIS, NONE]),
        (LLAMA, f"<|python_tag|>{LLAMA_PARIS}; {LLAMA_PARIS}", "", [PARIS, PARIS]),
        (LLAMA, f"{LLAMA_PARIS}\n\n{LLAMA_PARIS}", "", [PARIS, PARIS]),
        (LLAMA, f"Done: {LLAMA_PARIS}", f"Done: {LLAMA_PARIS}", []),
    ],
)
def test_calls_are_found_in_each_familys_form(
    form: CallForm, answer: str, text: str, calls: list[tuple[str, str]]
) -> None:
    assert whole(form, answer) == (text, calls)


@EACH_FORM
@pytest.mark.parametrize(
    "json_of_it",
    [
        "", " [1, 2", " no JSON ", '{"name": "weather", "arguments": {"city": "Par', "[]",
        '{"name": "unknown", "arguments": {}}', '{"name": "weather", "arguments": [1]}',
        '{"name": "weather", "arguments": {"a": NaN}}', '[{"name": "weather"}, 5]',
        '{"name": "weather", "arguments": {"a": 1e999}}',
        '{"name": "weather", "arguments": {"a": 1},}', "[" * 100_000 + "]" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_call_stays_text(form: CallForm, json_of_it: str) -> None:
    for text in (f"{form.opening}{json_of_it}{form.closing}", " \n", '{"answer": 42} is it', "[a"):
        assert whole(form, text) == (text, [])


@EACH_FORM
def test_a_call_is_held_back_up_to_a_length(form: CallForm) -> None:
    def written(length: int) -> str:
        return form.opening + json.dumps({"name": "add", "arguments": {"a": "x" * length}})

    assert len(whole(form, written(MOST_CHARACTERS // 2))[1]) == 1
    longer = written(MOST_CHARACTERS)
    assert whole(form, longer) == (longer, [])


def test_marks_in_calls_that_never_end_are_read_again_only_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parsing, "MOST_FAILED", 50_000)
    begun: list[Extent] = []

    class Counted(Extent):
        def __init__(self, at: int) -> None:
            super().__init__(at)
            begun.append(self)

    monkeypatch.setattr(parsing, "Extent", Counted)
    answer = (MISTRAL.opening + "[") * 4_000
    assert whole(MISTRAL, answer) == (answer, [])
    assert sum(extent.at for extent in begun) <= 50_000 + len(answer)


FRAGMENTS = st.sampled_from(
    [
        *(form.opening for form in (HERMES, MISTRAL, LLAMA)), "</tool_call>", ";", " ", "\n", "x",
        "{", "}", "[", "]", '"', "\\", ",", ":", "<", "name", '"name": "weather"',
        '"arguments": {"city": "Paris"}', '"parameters": {}', HERMES_PARIS, LLAMA_PARIS, ARRAY,
        f"[TOOL_CALLS] {ARRAY}", "tool", "_call>", "é", "\u2028", "NaN", "1e999",
    ]
)  # fmt: skip
ANSWER = st.lists(FRAGMENTS | st.text(max_size=3), max_size=12).map("".join)


@given(FORMS, ANSWER, MOST, st.data())
def test_every_cut_of_an_answer_gives_the_same(
    form: CallForm, answer: str, most_calls: int | None, data: st.DataObject
) -> None:
    text, calls = whole(form, answer, most_calls)
    for pieces in (cut(data.draw, answer), list(answer)):
        assert read(CallParser(form, NAMES, most_calls), pieces) == (text, calls)
    letters = iter(answer)
    assert all(letter in letters for letter in text)  # in its order
    assert calls or text == answer
    for name, arguments in calls:
        assert name in NAMES
        assert isinstance(json.loads(arguments), dict)


@given(FORMS, st.lists(TEXT | CALLS, max_size=5), MOST, st.sampled_from([None, 2]), st.data())
def test_calls_with_any_arguments_are_found_and_no_text_around_them_is_lost(
    form: CallForm,
    parts: list[Any],
    most_calls: int | None,
    indent: int | None,
    data: st.DataObject,
) -> None:
    """Also by the parser for texts in which a grammar makes a call of whatever begins like one, and
    writes it without an indent."""
    answer = "".join(
        part if isinstance(part, str) else write(form, part, indent=indent) for part in parts
    )
    text, expected = "", list[Any]()
    for part in parts:
        if most_calls is not None and len(expected) >= most_calls:
            break  # what follows is left out
        if isinstance(part, str):
            text += part
        else:
            expected += part
    found = text, expected[:most_calls]
    assert loaded(whole(form, answer, most_calls)) == found
    for pieces in ([answer], cut(data.draw, answer), list(answer)) if indent is None else ():
        assert loaded(read(StrictCallParser(form, NAMES, most_calls), pieces)) == found


@given(FORMS, CALLS, st.booleans(), st.data())
def test_arguments_that_a_grammar_keeps_arrive_in_pieces(
    form: CallForm, calls: list[tuple[str, Any]], forced: bool, data: st.DataObject
) -> None:
    def parser() -> ForcedCallParser | StrictCallParser:
        return ForcedCallParser() if forced else StrictCallParser(form, NAMES)

    before = "" if forced else "So: "
    answer = before + write(form, calls, indent=2 if forced else None)
    text, found = read(parser(), cut(data.draw, answer))
    assert loaded((text, found)) == (before, calls)
    begun = answer[: data.draw(st.integers(0, len(answer)))]
    text, parts = read(parser(), list(begun))
    assert text[: len(before)] == begun[: len(before)]
    for (name, part), (whole_name, arguments) in zip(parts, found, strict=False):
        assert name == whole_name
        assert arguments.startswith(part)
