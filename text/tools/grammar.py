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
    rules = ["start: calls"] if answer is None else ["start: calls | answer", f"answer: {answer}"]
    # without a mark, an answer in JSON would begin like a call
    marked = not form.bare or answer is not None
    opening = mark_of(form.opening, special_ids) if marked else ""
    if form.in_array:
        rules.append(f"calls: {opening} {_array(several)}")
    else:
        between = _quoted("; " if form.bare else "\n")
        rules.append(f"calls: marked ({between} marked)*" if several else "calls: marked")
        rules.append(f"marked: {opening} {_closed_call(form, special_ids)}")
    return "\n".join([*rules, *_call(form, schemas)])


def grammar_of_text_with_calls(
    form: CallForm, schemas: Schemas, *, several: bool, special_ids: Mapping[str, int]
) -> str:
    """A grammar of all texts in which whatever begins like a call is one."""
    parts = "part* text" if several else "part | text"
    before = "" if not form.bare else "calls? " if several else "calls | "
    rules = [f"start: {before}{parts}"]
    within = "calls" if form.bare else _closed_call(form, special_ids)
    rules.append(f"part: opening {_array(several) if form.in_array else within}")
    if form.bare:
        rules.append(f"calls: call ({_quoted('; ')} call)*" if several else "calls: call")
    # it ends with the first mark; a special token is no part of any text
    lazy = "" if form.opening in special_ids else "[lazy]"
    rules.append(f"opening{lazy}: TEXT {mark_of(form.opening, special_ids)}")
    rules += ["text: TEXT", f"TEXT: /{_NOT_BARE if form.bare else _ANY_TEXT}/"]
    return "\n".join([*rules, *_call(form, schemas)])


def _call(form: CallForm, schemas: Schemas) -> Iterator[str]:
    """The rule `call`, and those that it needs."""
    yield "call: " + " | ".join(f"call_{number}" for number in range(len(schemas)))
    for number, (name, schema) in enumerate(schemas.items()):
        head = f'{{"name": "{name}", "{form.arguments}": '
        yield f"call_{number}: {_quoted(head)} arguments_{number} {_quoted('}')}"
        yield f"arguments_{number}: {of_schema(_closed(schema))}"


def _array(several: bool) -> str:
    """What follows the mark where calls are in an array."""
    more = f" ({_quoted(', ')} call)*" if several else ""
    return f"{_quoted(' [')} call{more} {_quoted(']')}"


def _closed_call(form: CallForm, special_ids: Mapping[str, int]) -> str:
    """What follows the mark of each call."""
    if form.bare:
        return "call"
    line = _quoted("\n")
    return f"{line} call {line} {mark_of(form.closing, special_ids)}"


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
