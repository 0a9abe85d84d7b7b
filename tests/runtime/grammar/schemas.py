"""JSON schemas with every keyword that can be enforced, and trees, maps and tagged unions, as
clients send them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

FORMATS = [
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
]  # fmt: skip
PATTERNS = [
    "^[A-Z][a-z]*$", "^\\d{3}-\\d{4}$", "^(yes|no|maybe)$", "^[^\\s@]{1,9}@[a-z]{1,5}\\.com$",
    "ab", "^$", "^(a|b)*c?$",
]  # fmt: skip


def closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
        **more,
    }


def _scalars() -> list[Schema]:
    limits: dict[str, list[Schema]] = {
        "integer": [
            {}, {"minimum": -5, "maximum": 5}, {"exclusiveMinimum": 10}, {"exclusiveMaximum": 0},
            {"minimum": 10, "maximum": 99, "multipleOf": 3}, {"enum": list(range(0, 50, 7))},
        ],
        "number": [
            {}, {"minimum": 0.5, "maximum": 2.25}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
            {"multipleOf": 0.01, "minimum": 0},
        ],
        "string": [
            {}, {"minLength": 1}, {"maxLength": 5}, {"minLength": 3, "maxLength": 3},
            {"enum": ["ä", "日本", '\n"\\', "a b"]},
            *({"pattern": pattern} for pattern in PATTERNS),
            *({"format": name} for name in FORMATS),
        ],
    }  # fmt: skip
    return [
        *({"type": kind, **more} for kind, among in limits.items() for more in among),
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["number", "string"], "maxLength": 4, "minimum": 1},
        {"enum": [1, "one", None, True, 2.5]},
        {"const": {"kind": "point", "at": [0, 0]}},
    ]


def _arrays() -> list[Schema]:
    integer: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
    return [
        {"type": "array", "maxItems": 0},
        {"type": "array", "prefixItems": [integer, {"const": "x"}], "items": False, "minItems": 2},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": integer, "maxItems": 4},
        {"type": "array", "items": closed({"id": integer}), "minItems": 1, "maxItems": 2},
    ]  # fmt: skip


def _objects() -> list[Schema]:
    integer: Schema = {"type": "integer", "minimum": 0, "maximum": 999}
    word: Schema = {"type": "string", "pattern": "^[a-z]{1,8}$"}
    return [
        closed({"name": word, "age": integer}),
        closed({"a": integer, "b": integer, "c": integer}, []),
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "additionalProperties": word, "minProperties": 1, "maxProperties": 3},
        {
            "type": "object",
            "properties": {"id": integer},
            "required": ["id"],
            "additionalProperties": {"type": "boolean"},
            "maxProperties": 3,
        },
        {
            "type": "object",
            "patternProperties": {"^x_[a-z]{1,4}$": integer, "^y_[a-z]{1,4}$": {"type": "null"}},
            "additionalProperties": False,
            "maxProperties": 2,
        },
        closed({"with space": integer, "quote\"d": integer, "ünï": integer}),
    ]  # fmt: skip


def _combinations() -> list[Schema]:
    integer: Schema = {"type": "integer", "minimum": 0, "maximum": 99}
    word: Schema = {"type": "string", "pattern": "^[a-z]{1,6}$"}
    circle = closed({"kind": {"const": "circle"}, "radius": integer})
    square = closed({"kind": {"const": "square"}, "side": integer})
    tree: Schema = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": closed(
                {
                    "value": integer,
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                }
            )
        },
    }
    return [
        {"anyOf": [integer, word]},
        {"anyOf": [circle, square]},
        {"oneOf": [circle, square]},
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": integer}, "required": ["a"]},
                {"properties": {"b": word}, "required": ["b"]},
            ],
            "additionalProperties": False,
            "properties": {"a": True, "b": True},
        },
        tree,
        {"definitions": {"w": word}, **closed({"w": {"$ref": "#/definitions/w"}})},
        closed({"v": {"$ref": "#/properties/w"}, "w": word}),
        {"type": "array", "items": {"oneOf": [circle, square]}, "minItems": 1, "maxItems": 2},
    ]  # fmt: skip


def schemas() -> list[Schema]:
    return [*_scalars(), *_arrays(), *_objects(), *_combinations()]
