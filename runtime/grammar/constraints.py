"""Constraints from what clients write: schemas, choices, and grammars in two notations.

JSON schemas are put into the words in which llguidance enforces them. What it would let pass is
refused.

types     `properties` or `items` without a type mean objects or arrays, as in xgrammar and
          llama.cpp; in the standard they mean any value
formats   of dates and times: llguidance has a 29 February and a second 60 at any time
keys      those that a schema does not name may come twice, since a grammar has no memory. So
          they must not be what makes `minProperties` true, and `strict` allows none that must
          match a schema, like OpenAI's. With escapes (`\\u0061`) they could also be named ones
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from runtime.grammar.checking import GrammarError
from seams import Constraint

Schema = Mapping[str, Any]

_OF_TYPES = {
    "object": {"properties", "patternProperties", "additionalProperties", "required"},
    "array": {"items", "prefixItems"},
}
_TYPED = {"type", "enum", "const", "$ref", "anyOf", "oneOf"}  # what decides it otherwise
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # of schemas
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ONES = ("items", "additionalProperties")
_IDLE = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
_ESCAPES = 'nrbtf\\"'  # but for \u, by which only control characters are written

_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]"
    "|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]"
    "|[13579][26])00)-02-29)"
)
_TIME = (
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]+)?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}[Tt]{_TIME}$"}

_OF_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def of_schema(
    schema: Mapping[str, Any] | str, *, lenient: bool = False, strict: bool = False
) -> Constraint:
    """A JSON schema, or its text. `lenient`, `strict`: as in `enforceable`. Raises GrammarError."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise GrammarError("the schema must be an object")
    try:
        made = enforceable(schema, lenient=lenient, strict=strict)
        return Constraint("json_schema", json.dumps(made))
    except GrammarError:
        raise
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema cannot be written as JSON: {error}") from None


def of_choice(texts: Sequence[str]) -> Constraint:
    """One of these texts. A terminal: rules are for grammars, and thousands are slow."""
    return Constraint("lark", "start: TEXT\nTEXT: " + " | ".join(map(json.dumps, texts)))


def of_grammar(text: str) -> Constraint:
    """A grammar in llguidance's Lark, or in the EBNF of llama.cpp (GBNF), whose rules have `::=`.
    Raises GrammarError."""
    if not _OF_GBNF.search(text):
        return Constraint("lark", text)
    try:
        return Constraint("lark", gbnf_to_lark(text))
    except Exception as error:  # the converter raises what its parts raise
        raise GrammarError(f"it cannot be converted from GBNF to Lark: {error}") from None


def enforceable(schema: Schema, *, lenient: bool = False, strict: bool = False) -> dict[str, Any]:
    """The same schema for llguidance. `lenient`: what cannot be enforced is ignored. `strict`: keys
    that match a schema have names. Raises GrammarError, and RecursionError for one that is nested
    too deeply."""
    found = _Schemas(lenient, strict)
    made = found.prepared(schema)
    options: dict[str, Any] = {"lenient": True} if lenient else {}
    if found.has_others:
        options["json_allowed_escapes"] = _ESCAPES
    given = made.get("x-guidance")
    options |= given if isinstance(given, dict) else {}
    return {**made, "x-guidance": options} if options else made


class _Schemas:
    def __init__(self, lenient: bool, strict: bool) -> None:
        self._lenient = lenient
        self._strict = strict
        self.has_others = False  # an object has keys with names, and others

    def prepared(self, schema: Schema, *, infer: bool = True) -> dict[str, Any]:
        """`infer`: its type, too."""
        made = {k: value for k, value in schema.items() if _IDLE.get(k, schema) is not value}
        for key in _MAPS:
            if isinstance(held := made.get(key), Mapping):
                made[key] = {name: self._within(one) for name, one in held.items()}
        for key in _LISTS:
            if isinstance(held := made.get(key), list):
                of_value = key in ("allOf", "anyOf", "oneOf")  # itself, not of its parts
                own = infer or not of_value
                if key == "oneOf" and not self._lenient:
                    own = own and _of_one_type(held)
                made[key] = [self._within(one, infer=own) for one in held]
        for key in _ONES:
            if isinstance(held := made.get(key), Mapping):
                made[key] = self.prepared(held)
        if infer and (types := _types(made)):
            made["type"] = types
        self._require_names(made)
        return _with_exact_format(made)

    def _within(self, schema: Any, *, infer: bool = True) -> Any:
        """Of what is no schema, llguidance says so."""
        return self.prepared(schema, infer=infer) if isinstance(schema, Mapping) else schema

    def _require_names(self, schema: Schema) -> None:
        others, patterns = schema.get("additionalProperties", True), schema.get("patternProperties")
        if others is False and not patterns:
            return
        if patterns or schema.get("properties") or schema.get("required"):
            self.has_others = True
        required = schema.get("required")
        most_distinct = 1 + (len(required) if isinstance(required, list) else 0)
        least, most = schema.get("minProperties"), schema.get("maxProperties")
        if not self._lenient and isinstance(least, int) and least > most_distinct:
            raise GrammarError(
                f"minProperties {least} cannot be enforced: keys that the schema does not name may "
                f"come twice; allowed: up to {most_distinct}, one more than is required"
            )
        key = "patternProperties" if patterns else "additionalProperties"
        may_repeat = not (isinstance(most, int) and most <= most_distinct)
        if self._strict and (patterns or (isinstance(others, Mapping) and others)) and may_repeat:
            raise GrammarError(
                f"{key} cannot be enforced where 'strict' is true: keys that the schema does not "
                "name may come twice; allowed: 'additionalProperties' false, or no 'strict'"
            )


def _types(schema: Schema) -> Any:
    """As the schema names them, or else as its keywords mean them."""
    if schema.keys() & _TYPED:
        return schema.get("type")
    types = [name for name, keys in _OF_TYPES.items() if schema.keys() & keys]
    return types[0] if len(types) == 1 else types


def _of_one_type(members: list[Any]) -> bool:
    """To the standard, a value of another type is also one of a schema that has no type."""
    types = [_types(one) if isinstance(one, Mapping) else None for one in members]
    return all(found and found == types[0] for found in types)


def _with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("format")
    exact = _FORMATS.get(name) if isinstance(name, str) else None
    if exact is None:
        return schema
    rest = {key: value for key, value in schema.items() if key != "format"}
    if "pattern" not in rest:
        return {**rest, "pattern": exact}
    others = rest.get("allOf", [])
    return {**rest, "allOf": [*(others if isinstance(others, list) else []), {"pattern": exact}]}
