"""The JSON of calls, as models write it."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

KEYS = ("arguments", "parameters")  # of a call's arguments, whichever the model's template shows


@dataclass(frozen=True, slots=True)
class WrittenCall:
    name: str
    arguments: str  # a JSON object


def read_calls(text: str, names: Collection[str]) -> Sequence[WrittenCall] | None:
    """Of an object or an array of them; None unless each one calls one of `names`."""
    try:
        value = _decoder.decode(text)
        calls = [_call(one) for one in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):
        return None
    return calls if calls and all(call.name in names for call in calls) else None


def _call(value: Any) -> WrittenCall:
    """Raises ValueError. Arguments that are left out are none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call is an object with a name")
    arguments: Any = next((value[key] for key in KEYS if key in value), {})
    if isinstance(arguments, str):  # some models write an object's JSON as a string
        arguments = _decoder.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return WrittenCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is too large")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
