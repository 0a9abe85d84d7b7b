"""One compact notation for shapes on every command line: ``name:value,key=value``.

Independent of the meaning of the names; arrivals, sizes and traces pass in their own tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

T = TypeVar("T")
MOST = 2**31 - 1  # of anything that is counted
Count = Annotated[int, Field(ge=1, le=MOST)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Least0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SpecError(ValueError):
    """A shape or a file that cannot be understood; the message names what is allowed."""


def read_text(path: Path) -> str:
    """Raises SpecError."""
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None


def build(text: str, table: Mapping[str, Callable[..., T]], what: str) -> T:
    """Call what ``text`` names in ``table``, its arguments converted and checked."""
    name, _, rest = text.strip().partition(":")
    if name not in table:
        raise SpecError(f"{what} {text!r} is unknown; allowed: {', '.join(table)}")
    fields = [*inspect.signature(table[name]).parameters]
    values: dict[str, str] = {}
    for place, part in enumerate(p.strip() for p in rest.split(",") if p.strip()):
        key, equals, value = part.partition("=")
        if not equals and place < len(fields) and [*values] == fields[:place]:
            key, value = fields[place], part
        if key not in fields or key in values:
            allowed = ", ".join(fields) or "nothing"
            raise SpecError(f"{what} {text!r}: {part!r} is unknown; allowed, each once: {allowed}")
        values[key] = value
    try:
        maker: TypeAdapter[T] = TypeAdapter(table[name])  # type: ignore[arg-type]  # a function
        return maker.validate_python(values)
    except ValueError as error:
        told = said(error).removeprefix("Value error, ")
        raise SpecError(f"{what} {text!r}: {told}") from None


def said(error: ValueError) -> str:
    """What is wrong, in pydantic's words where it is pydantic's."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors()[0]
    return "".join(f"{key}: " for key in found["loc"]) + found["msg"]
