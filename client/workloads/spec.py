"""One compact notation for shapes on every command line: ``name:value,key=value``.

Independent of the meaning of the names; arrivals, sizes and traces pass in their own tables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class SpecError(ValueError):
    """A shape that cannot be understood; the message names what is allowed."""


def read_text(path: Path) -> str:
    """Raises SpecError."""
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None


def allowed(
    default: Any = dataclasses.MISSING,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    among: Sequence[str] = (),
) -> Any:
    """A field of a shape, with the values that `build` accepts."""
    limits = {"least": least, "most": most, "above": above, "among": among}
    return dataclasses.field(default=default, metadata=limits)


def split_spec(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Split ``gamma:cv=2`` into its name, its positional values and its named values."""
    name, _, rest = text.strip().partition(":")
    positional: list[str] = []
    named: dict[str, str] = {}
    for part in (p.strip() for p in rest.split(",") if p.strip()):
        key, equals, value = part.partition("=")
        if not equals:
            if named:
                raise SpecError(f"{text!r}: the value {part!r} follows a named one")
            positional.append(part)
        elif key in named:
            raise SpecError(f"{text!r}: {key!r} is given twice")
        else:
            named[key] = value
    return name, positional, named


def build(text: str, table: Mapping[str, type[T]], what: str) -> T:
    """Make the dataclass that ``text`` names from ``table``, its fields converted and checked."""
    name, positional, named = split_spec(text)
    if name not in table:
        raise SpecError(f"{what} {text!r} is unknown; allowed: {', '.join(table)}")
    cls = table[name]
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if len(positional) > len(fields):
        raise SpecError(f"{what} {text!r}: at most {len(fields)} values ({', '.join(fields)})")
    given = dict(zip(fields, positional, strict=False))
    for key, value in named.items():
        if key not in fields:
            allowed = ", ".join(fields) or "nothing"
            raise SpecError(f"{what} {text!r}: {key!r} is unknown; allowed: {allowed}")
        if key in given:
            raise SpecError(f"{what} {text!r}: {key!r} is given twice")
        given[key] = value
    values = {key: _convert(text, key, value, fields[key].type) for key, value in given.items()}
    for key, found in values.items():
        if fields[key].metadata and (wanted := _refused(found, **fields[key].metadata)):
            raise SpecError(f"{what} {text!r}: {key} must be {wanted}, not {found!r}")
    missing = [
        f.name
        for f in fields.values()
        if f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SpecError(f"{what} {text!r} needs {', '.join(missing)}")
    try:
        return cls(**values)
    except ValueError as error:
        raise SpecError(f"{what} {text!r}: {error}") from None


def _convert(text: str, key: str, value: str, annotation: Any) -> object:
    kind = str(annotation)
    try:
        if kind.startswith("int"):
            return int(value)
        if kind.startswith("float"):
            return float(value)
    except ValueError:
        noun = "a whole number" if kind.startswith("int") else "a number"
        raise SpecError(f"{text!r}: {key} must be {noun}, not {value!r}") from None
    if kind.startswith("bool"):
        if value.lower() not in ("true", "false"):
            raise SpecError(f"{text!r}: {key} must be true or false, not {value!r}")
        return value.lower() == "true"
    return value


def _refused(
    value: Any, *, least: float, most: float, above: float, among: Sequence[str]
) -> str | None:
    """What it should be; None if it is."""
    if among:
        return None if value in among else f"one of {', '.join(among)}"
    if least <= value <= most and value > above and math.isfinite(value):
        return None
    if math.isfinite(most):
        return f"between {least:g} and {most:g}"
    return f"a number > {above:g}" if math.isfinite(above) else f"at least {least:g}"
