"""Answers with calls, as each family's templates write them, and what a parser finds in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from text.tools.forms import HERMES, LLAMA, MISTRAL, CallForm
from text.tools.parsing import CallPiece, Parser, Piece

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A town."}},
            "required": ["city"],
        },
    },
}
NAMES = ("weather", "add")
EACH_FORM = pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA], ids=lambda form: form.name)
FORMS = st.sampled_from([HERMES, MISTRAL, LLAMA])
TEXT = st.text(alphabet="ab c\n", max_size=5).filter(str.strip)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), OBJECT), min_size=1, max_size=3)
Call = tuple[str, Any]  # with its arguments


def write(
    form: CallForm, calls: Sequence[Call], *, indent: int | None = None, marked: bool = True
) -> str:
    """`marked`: with a mark before each call, also where the form needs none."""
    objects = [{"name": name, form.arguments: arguments} for name, arguments in calls]
    if form.in_array:
        return f"{form.opening} {json.dumps(objects, indent=indent)}"
    texts = [json.dumps(call, indent=indent, ensure_ascii=False) for call in objects]
    if form.bare:
        return "; ".join(form.opening * marked + text for text in texts)
    return "\n".join(f"{form.opening}\n{text}\n{form.closing}" for text in texts)


def read(parser: Parser, pieces: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls with their arguments as they are written."""
    found: list[Piece] = []
    for piece in pieces:
        found += parser.push(piece)
    found += parser.finish()
    calls: list[tuple[str, str]] = []
    for part in found:
        if isinstance(part, CallPiece):
            if part.name is not None:
                calls.append((part.name, ""))
            assert part.index == len(calls) - 1
            name, arguments = calls[-1]
            calls[-1] = name, arguments + part.arguments
    assert parser.calls == len(calls)
    return "".join(part for part in found if isinstance(part, str)), calls


def loaded(told: tuple[str, list[tuple[str, str]]]) -> tuple[str, list[Call]]:
    """The same with the arguments as objects."""
    return told[0], [(name, json.loads(arguments)) for name, arguments in told[1]]


def cut(draw: Any, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
