"""The grammar of calls, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from text.tools.forms import CallForm

# JSON as json.dumps writes it; free blanks lead small models to write nothing else
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# the keywords beside which `additionalProperties: false` excludes nothing that they describe
_PLAIN = {"type", "properties", "required", "title", "description", "$defs", "$schema",
    "x-guidance",
}  # fmt: skip
_ANY_TEXT = r"(.|\n)*"
# what CallParser does not take for a call without a mark, behind another call, too
_NOT_BARE = r"[\s;]*([^\s;{\[](.|\n)*|\[\s*([^\s{](.|\n)*)?)?"

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by function


def grammar_of_calls(
    form: CallForm,
    schemas: Schemas,
    *,
    several: bool,
    special_ids: Mapping[str, int],
    answer: str | None = None,
) -> str:
    """A grammar whose texts are calls. `several`: more than one call. `answer`: the right side of a
    rule, whose texts are allowed in place of calls."""
    rules = _Rules(form, several, special_ids)
    start = "start: calls" if answer is None else f"start: calls | answer\nanswer: {answer}"
    # without a mark, an answer in JSON would begin like a call
    marked = not form.bare or answer is not None
    return "\n".join([start, *rules.calls(marked=marked), *rules.call(schemas)])


def grammar_of_text_with_calls(
    form: CallForm, schemas: Schemas, *, several: bool, special_ids: Mapping[str, int]
) -> str:
    """A grammar of all texts in which whatever begins like a call is one."""
    rules = _Rules(form, several, special_ids)
    return "\n".join([*rules.text_with_calls(), *rules.call(schemas)])


class _Rules:
    def __init__(self, form: CallForm, several: bool, special_ids: Mapping[str, int]) -> None:
        self._form = form
        self._several = several
        self._special_ids = special_ids

    def calls(self, *, marked: bool) -> Iterator[str]:
        """The rule `calls`, and those that it needs but for `call`."""
        opening = self._mark(self._form.opening) if marked else ""
        if self._form.in_array:
            yield f"calls: {opening} {self._array}"
            return
        between = _quoted("; " if self._form.bare else "\n")
        yield f"calls: marked ({between} marked)*" if self._several else "calls: marked"
        yield f"marked: {opening} {self._closed_call}"

    def text_with_calls(self) -> Iterator[str]:
        """The rule `start`, and those that it needs but for `call`."""
        form, bare = self._form, self._form.bare
        if self._several:
            yield "start: calls? part* text" if bare else "start: part* text"
        else:
            yield "start: calls | part | text" if bare else "start: part | text"
        within = self._array if form.in_array else "calls" if bare else self._closed_call
        yield f"part: opening {within}"
        if bare:
            yield f"calls: call ({_quoted('; ')} call)*" if self._several else "calls: call"
        mark = self._mark(form.opening)
        # it ends with the first mark; a special token is no part of any text
        is_special = form.opening in self._special_ids
        yield f"opening: TEXT {mark}" if is_special else f"opening[lazy]: TEXT {mark}"
        yield "text: TEXT"
        yield f"TEXT: /{_NOT_BARE if bare else _ANY_TEXT}/"

    def call(self, schemas: Schemas) -> Iterator[str]:
        """The rule `call`, and those that it needs."""
        yield "call: " + " | ".join(f"call_{number}" for number in range(len(schemas)))
        for number, (name, schema) in enumerate(schemas.items()):
            head = f'{{"name": "{name}", "{self._form.arguments}": '
            yield f"call_{number}: {_quoted(head)} arguments_{number} {_quoted('}')}"
            yield f"arguments_{number}: {of_schema(_closed(schema))}"

    @property
    def _array(self) -> str:
        """What follows the mark where calls are in an array."""
        more = f" ({_quoted(', ')} call)*" if self._several else ""
        return f"{_quoted(' [')} call{more} {_quoted(']')}"

    @property
    def _closed_call(self) -> str:
        """What follows the mark of each call."""
        if self._form.bare:
            return "call"
        line = _quoted("\n")
        return f"{line} call {line} {self._mark(self._form.closing)}"

    def _mark(self, text: str) -> str:
        return mark_of(text, self._special_ids)


def mark_of(text: str, special_ids: Mapping[str, int]) -> str:
    """A special token has no characters in a grammar, but its id."""
    return f"<[{special_ids[text]}]>" if text in special_ids else _quoted(text)


def of_schema(schema: Mapping[str, Any]) -> str:
    """The right side of a rule for JSON of a schema."""
    options = schema.get("x-guidance")
    options = options if isinstance(options, dict) else {}
    return "%json " + json.dumps({**schema, "x-guidance": {**_WRITTEN, **options}})


def of_regex(expression: str) -> str:
    """The right side of a rule for matches of a regular expression."""
    signs = {"/": "\\/", "\n": "\\n"}
    escaped = re.sub(
        r"\\.|/|\n", lambda part: signs.get(part[0], part[0]), expression, flags=re.DOTALL
    )
    return f"/{escaped}/"


def of_lark(grammar: str) -> str:
    """The right side of a rule for texts of a grammar of its own."""
    return f"%lark {{\n{grammar}\n}}"


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments that a function does not name are of no use to it; a small model would write
    many."""
    is_plain = schema.keys() <= _PLAIN
    return {**schema, "additionalProperties": False} if is_plain else schema


def _quoted(text: str) -> str:
    return json.dumps(text)
