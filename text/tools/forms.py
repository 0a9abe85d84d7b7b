"""How models write calls of tools. A model's chat template shows which form it was trained on."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

# of a call's arguments, whichever the model's template shows
KEYS = ("arguments", "parameters")
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call is JSON between `opening` and `closing`: an object with a name and arguments, or an
    array of such objects. `bare`: the JSON also counts without `opening` where an answer, or what
    follows a call, begins with it. `arguments`: the key that the template's examples have."""

    name: str
    opening: str
    closing: str = ""
    arguments: str = "arguments"
    in_array: bool = False
    bare: bool = False
    id_prefix: str = "call_"
    id_characters: int = 24

    def new_id(self) -> str:
        """An id for a call, as this family's templates accept it."""
        drawn = (secrets.choice(_ALPHABET) for _ in range(self.id_characters))
        return self.id_prefix + "".join(drawn)


HERMES = CallForm("hermes", "<tool_call>", "</tool_call>")  # also Qwen and SmolLM
LLAMA = CallForm("llama", "<|python_tag|>", ";", arguments="parameters", bare=True)
MISTRAL = CallForm(
    "mistral",
    "[TOOL_CALLS]",
    in_array=True,
    id_prefix="",
    id_characters=9,  # its templates refuse other lengths
)


def form_of(template: str) -> CallForm:
    """By the marks in the source of a chat template; Hermes' form where there are none, since it is
    the most common."""
    if MISTRAL.opening in template:
        return MISTRAL
    if HERMES.opening in template:
        return HERMES
    if LLAMA.opening in template or "<|start_header_id|>" in template:
        return LLAMA
    return HERMES


@dataclass(frozen=True, slots=True)
class WrittenCall:
    name: str
    arguments: str  # a JSON object


def read_calls(text: str, names: Collection[str]) -> Sequence[WrittenCall] | None:
    """Of an object or an array of them; None unless each one calls one of `names`."""
    try:
        value = msgspec.json.decode(text)
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
        arguments = msgspec.json.decode(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return WrittenCall(value["name"], json.dumps(arguments, ensure_ascii=False))
