"""Calls in answers: every cut of an answer gives the same, and no text is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.tools import parsing
from text.tools.extent import Extent
from text.tools.forms import HERMES, LLAMA, MISTRAL, CallForm
from text.tools.parsing import MOST_CHARACTERS, CallParser, CallPiece, Parser, Piece

NAMES = ("weather", "add")
Calls = list[tuple[str, str]]


def read(parser: Parser, pieces: Sequence[str]) -> tuple[str, Calls]:
    """The text, and the calls with their arguments."""
    found: list[Piece] = []
    for piece in pieces:
        found += parser.push(piece)
    found += parser.finish()
    calls: Calls = []
    for part in found:
        if isinstance(part, CallPiece):
            if part.name is not None:
                calls.append((part.name, ""))
            assert part.index == len(calls) - 1 == parser.calls - 1 or part.index < parser.calls
            name, arguments = calls[part.index]
            calls[part.index] = name, arguments + part.arguments
    return "".join(part for part in found if isinstance(part, str)), calls


def whole(form: CallForm, answer: str, most_calls: int | None = None) -> tuple[str, Calls]:
    return read(CallParser(form, NAMES, most_calls), [answer])


PARIS = ("weather", '{"city": "Paris"}')
SUM = ("add", '{"a": 1, "b": [2.5, {"c": "}]\\""}]}')
HERMES_PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_SUM = (
    '<tool_call>{"arguments": {"a": 1, "b": [2.5, {"c": "}]\\""}]}, "name": "add"}</tool_call>'
)
LLAMA_PARIS = '{"name": "weather", "parameters": {"city": "Paris"}}'
ARRAY = '[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add"}]'

ANSWERS: list[tuple[CallForm, str, str, Calls]] = [
    (HERMES, HERMES_PARIS, "", [PARIS]),
    (HERMES, f"\n\n{HERMES_PARIS}\n{HERMES_SUM}\n", "", [PARIS, SUM]),
    (HERMES, f"Let me see.\n{HERMES_PARIS}", "Let me see.\n", [PARIS]),
    (HERMES, f"One {HERMES_PARIS} two\n", "One  two\n", [PARIS]),
    (HERMES, f"<tool_call>{ARRAY}</tool_call>", "", [PARIS, ("add", "{}")]),  # SmolLM2's
    (HERMES, HERMES_PARIS.removesuffix("</tool_call>"), "", [PARIS]),
    (HERMES, HERMES_PARIS.replace('{"city": "Paris"}', r'"{\"city\": \"Paris\"}"'), "", [PARIS]),
    (HERMES, f"<tool_call>{{<tool_call>{HERMES_PARIS}", "<tool_call>{<tool_call>", [PARIS]),
    (MISTRAL, f"[TOOL_CALLS] {ARRAY}", "", [PARIS, ("add", "{}")]),
    (MISTRAL, f"Well, [TOOL_CALLS]{ARRAY}", "Well, ", [PARIS, ("add", "{}")]),
    (LLAMA, LLAMA_PARIS, "", [PARIS]),
    (LLAMA, f"<|python_tag|>{LLAMA_PARIS}; {LLAMA_PARIS}", "", [PARIS, PARIS]),
    (LLAMA, f"{LLAMA_PARIS}\n\n{LLAMA_PARIS}", "", [PARIS, PARIS]),
    (LLAMA, f"Done: {LLAMA_PARIS}", f"Done: {LLAMA_PARIS}", []),
]
TEXTS: list[tuple[CallForm, str]] = [
    (form, text)
    for form in (HERMES, MISTRAL, LLAMA)
    for text in (
        "",
        " \n",
        "no call",
        "<",
        f"{form.opening}",
        f"{form.opening} [1, 2",
        f"{form.opening} no JSON {form.closing}",
        f'{form.opening}{{"name": "weather", "arguments": {{"city": "Par',
        f'{form.opening}{{"name": "unknown", "arguments": {{}}}}{form.closing}',
        f'{form.opening}{{"name": "weather", "arguments": [1]}}{form.closing}',
        f'{form.opening}{{"name": "weather", "arguments": {{"a": NaN}}}}{form.closing}',
        f'{form.opening}{{"name": "weather", "arguments": {{"a": 1e999}}}}{form.closing}',
        f'{form.opening}{{"name": "weather", "arguments": {{"a": 1}},}}{form.closing}',
        f'{form.opening}[{{"name": "weather"}}, 5]{form.closing}',
        f"{form.opening}[]{form.closing}",
        form.opening + "[" * 100_000 + "]" * 100_000,
        '{"answer": 42} is it',
        "[a link](somewhere)",
    )
]


@pytest.mark.parametrize(("form", "answer", "text", "calls"), ANSWERS)
def test_calls_are_found_in_each_familys_form(
    form: CallForm, answer: str, text: str, calls: Calls
) -> None:
    assert whole(form, answer) == (text, calls)


@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_what_is_no_call_stays_text(form: CallForm, text: str) -> None:
    assert whole(form, text) == (text, [])


@pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA])
def test_a_call_is_held_back_up_to_a_length(form: CallForm) -> None:
    def written(length: int) -> str:
        call = {"name": "weather", "arguments": {"city": "x" * length}}
        return form.opening + json.dumps(call)

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


def test_what_follows_the_last_wanted_call_is_left_out() -> None:
    parser = CallParser(HERMES, NAMES, most_calls=1)
    assert read(parser, [f"a {HERMES_PARIS} b {HERMES_SUM} c"]) == ("a ", [PARIS])
    assert parser.complete
    assert whole(MISTRAL, f"[TOOL_CALLS]{ARRAY}", most_calls=1) == ("", [PARIS])


# --- properties -----------------------------------------------------------------------------

FRAGMENTS = st.sampled_from(
    [
        *(form.opening for form in (HERMES, MISTRAL, LLAMA)), "</tool_call>", ";", " ", "\n", "x",
        "{", "}", "[", "]", '"', "\\", ",", ":", "<", "name", '"name": "weather"',
        '"arguments": {"city": "Paris"}', '"parameters": {}', HERMES_PARIS, LLAMA_PARIS, ARRAY,
        f"[TOOL_CALLS] {ARRAY}", "tool", "_call>", "é", "\u2028", "NaN", "1e999",
    ]
)  # fmt: skip
ANSWER = st.lists(FRAGMENTS | st.text(max_size=3), max_size=12).map("".join)
FORMS = st.sampled_from([HERMES, MISTRAL, LLAMA])
MOST = st.sampled_from([None, 1, 2])


def cut(draw: Any, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(FORMS, ANSWER, MOST, st.data())
def test_every_cut_of_an_answer_gives_the_same(
    form: CallForm, answer: str, most_calls: int | None, data: st.DataObject
) -> None:
    expected = whole(form, answer, most_calls)
    for pieces in (cut(data.draw, answer), list(answer)):
        assert read(CallParser(form, NAMES, most_calls), pieces) == expected


@given(FORMS, ANSWER)
def test_text_is_a_part_of_the_answer_and_all_of_it_where_nothing_is_called(
    form: CallForm, answer: str
) -> None:
    text, calls = whole(form, answer)
    letters = iter(answer)
    assert all(letter in letters for letter in text)  # in its order
    assert calls or text == answer
    for name, arguments in calls:
        assert name in NAMES
        assert isinstance(json.loads(arguments), dict)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
WRITTEN = st.lists(st.tuples(st.sampled_from(NAMES), OBJECT), min_size=1, max_size=3)


def write(form: CallForm, calls: Sequence[tuple[str, Any]], indent: int | None) -> str:
    objects = [{"name": name, form.arguments: arguments} for name, arguments in calls]
    if form.in_array:
        return form.opening + json.dumps(objects, indent=indent)
    texts = [json.dumps(call, indent=indent, ensure_ascii=False) for call in objects]
    return "\n".join(f"{form.opening}{text}{form.closing}" for text in texts)


TEXT = st.text(alphabet="ab c\n", max_size=5).filter(str.strip)


@given(FORMS, st.lists(TEXT | WRITTEN, max_size=5), st.sampled_from([None, 2]))
def test_calls_with_any_arguments_are_found_and_no_text_around_them_is_lost(
    form: CallForm, parts: list[Any], indent: int | None
) -> None:
    answer = "".join(part if isinstance(part, str) else write(form, part, indent) for part in parts)
    text, found = whole(form, answer)
    assert text == "".join(part for part in parts if isinstance(part, str))
    calls = [call for part in parts if not isinstance(part, str) for call in part]
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls
