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


def grammar_of_calls(
    form: CallForm,
    schemas: Mapping[str, Mapping[str, Any]],
    *,
    several: bool,
    special_ids: Mapping[str, int],
    answer: str | None = None,
) -> str:
    """A grammar whose texts are calls. `schemas`: of the arguments, by function. `several`: more
    than one call. `answer`: the right side of a rule, whose texts are allowed in place of calls."""
    return "\n".join(_rules(form, schemas, several, special_ids, answer))


def _rules(
    form: CallForm,
    schemas: Mapping[str, Mapping[str, Any]],
    several: bool,
    special_ids: Mapping[str, int],
    answer: str | None,
) -> Iterator[str]:
    def mark(text: str) -> str:
        """A special token has no characters in a grammar, but its id."""
        return f"<[{special_ids[text]}]>" if text in special_ids else _quoted(text)

    yield "start: calls" if answer is None else "start: calls | answer"
    if answer is not None:
        yield f"answer: {answer}"
    if form.in_array:
        more = f" ({_quoted(', ')} call)*" if several else ""
        yield f"calls: {mark(form.opening)} {_quoted(' [')} call{more} {_quoted(']')}"
    else:
        # without a mark, an answer in JSON would begin like a call
        opening = "" if form.bare and answer is None else mark(form.opening)
        line, closing = ("", "") if form.bare else (_quoted("\n"), mark(form.closing))
        between = _quoted("; ") if form.bare else line
        yield f"calls: marked ({between} marked)*" if several else "calls: marked"
        yield f"marked: {opening} {line} call {line} {closing}"
    yield "call: " + " | ".join(f"call_{number}" for number in range(len(schemas)))
    for number, (name, schema) in enumerate(schemas.items()):
        head = f'{{"name": "{name}", "{form.arguments}": '
        yield f"call_{number}: {_quoted(head)} arguments_{number} {_quoted('}')}"
        yield f"arguments_{number}: {of_schema(_closed(schema))}"


def of_schema(schema: Mapping[str, Any]) -> str:
    """The right side of a rule for JSON of a schema."""
    options = schema.get("x-guidance")
    options = options if isinstance(options, dict) else {}
    return "%json " + json.dumps({**schema, "x-guidance": {**_WRITTEN, **options}})


def of_regex(expression: str) -> str:
    """The right side of a rule for matches of a regular expression."""
    escaped = re.sub(r"\\.|/|\n", _escaped, expression, flags=re.DOTALL)
    return f"/{escaped}/"


def _escaped(found: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(found[0], found[0])


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments that a function does not name are of no use to it; a small model would write
    many."""
    is_plain = schema.keys() <= _PLAIN
    return {**schema, "additionalProperties": False} if is_plain else schema


def _quoted(text: str) -> str:
    return json.dumps(text)
