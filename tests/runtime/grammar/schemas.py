"""JSON schemas as clients send them: trees, maps and tagged unions. All keywords are in the
official suite."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
        **more,
    }


_DIGIT: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
_WORD: Schema = {"type": "string", "pattern": "^[a-z]{1,6}$"}
_SHAPES = [closed({"kind": {"const": "circle"}, "radius": _DIGIT}),
           closed({"kind": {"const": "square"}, "side": _DIGIT})]  # fmt: skip
_NODES = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
SCHEMAS: list[Schema] = [
    *({"type": "string", "format": of} for of in ("date", "time", "date-time", "uuid")),
    *({"type": "string", "pattern": of} for of in ("^[A-Z][a-z]*$", "ab", "^(a|b)*c?$")),
    {"type": "string", "enum": ["ä", "日本", '\n"\\', "a b"]},
    {"type": "integer", "minimum": 10, "maximum": 99, "multipleOf": 3},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": ["number", "string"], "maxLength": 4, "minimum": 1},
    {"enum": [1, "one", None, True, 2.5]},
    {"const": {"kind": "point", "at": [0, 0]}},
    {"type": "array", "prefixItems": [_DIGIT, {"const": "x"}], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": _DIGIT, "maxItems": 4},
    closed({"name": _WORD, "age": _DIGIT}),
    closed({"a": _DIGIT, "b": _DIGIT, "c": _DIGIT}, []),
    {"type": "object", "additionalProperties": _WORD, "minProperties": 1, "maxProperties": 3},
    closed({"id": _DIGIT}, additionalProperties={"type": "boolean"}, maxProperties=3),
    closed({}, patternProperties={"^x_[a-z]{1,4}$": _DIGIT, "^y_": {"type": "null"}},
           maxProperties=2),
    closed({"with space": _DIGIT, 'quote"d': _DIGIT, "ünï": _DIGIT}),
    {"oneOf": _SHAPES},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]},
    {"$ref": "#/$defs/node", "$defs": {"node": closed({"value": _DIGIT, "children": _NODES})}},
    {"definitions": {"w": _WORD}, **closed({"w": {"$ref": "#/definitions/w"}})},
    {"type": "array", "items": {"anyOf": _SHAPES}, "minItems": 1, "maxItems": 2},
]  # fmt: skip
