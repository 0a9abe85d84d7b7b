"""200 JSON schemas with every keyword that can be enforced, and what clients send: records, trees,
maps, tagged unions, calls of functions."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

FORMATS = [
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
]  # fmt: skip
PATTERNS = [
    "^[a-z]{3}$", "^[A-Z][a-z]*$", "^\\d{3}-\\d{4}$", "^(yes|no|maybe)$", "^#[0-9a-fA-F]{6}$",
    "^v[0-9]+\\.[0-9]+\\.[0-9]+$", "^[^\\s@]{1,9}@[a-z]{1,5}\\.com$", "ab", "^$", "^(a|b)*c?$",
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
    kinds = ["string", "integer", "number", "boolean", "null"]
    ranges: list[Schema] = [
        {"minimum": 0}, {"maximum": 9}, {"minimum": -5, "maximum": 5}, {"exclusiveMinimum": 10},
        {"exclusiveMaximum": 0}, {"minimum": 100, "maximum": 100_000}, {"multipleOf": 5},
        {"minimum": 10, "maximum": 99, "multipleOf": 3},
        {"exclusiveMinimum": -1, "exclusiveMaximum": 1000},
    ]  # fmt: skip
    lengths: list[Schema] = [
        {"minLength": 1}, {"maxLength": 5}, {"minLength": 3, "maxLength": 3},
        {"minLength": 0, "maxLength": 0}, {"minLength": 2, "maxLength": 12},
    ]  # fmt: skip
    decimals: list[Schema] = [
        {"minimum": 0.5, "maximum": 2.25}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"multipleOf": 0.01, "minimum": 0}, {"maximum": -0.001},
    ]  # fmt: skip
    return [
        *({"type": kind} for kind in kinds),
        {"type": ["string", "null"]},
        {"type": ["integer", "boolean", "null"]},
        {"type": ["number", "string"], "maxLength": 4, "minimum": 1},
        *({"type": "integer", **limits} for limits in ranges),
        *({"type": "number", **limits} for limits in decimals),
        *({"type": "string", **limits} for limits in lengths),
        *({"type": "string", "pattern": pattern} for pattern in PATTERNS),
        *({"type": "string", "format": name} for name in FORMATS),
        {"enum": ["red", "green", "blue"]},
        {"enum": [1, "one", None, True, 2.5]},
        {"enum": [{"a": 1}, [1, 2], "x"]},
        {"const": "fixed"},
        {"const": {"kind": "point", "at": [0, 0]}},
        {"const": 7},
        {"type": "string", "enum": ["ä", "日本", '\n"\\', "a b"]},
        {"type": "integer", "enum": list(range(0, 50, 7))},
    ]


def _arrays() -> list[Schema]:
    integer: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
    return [
        {"type": "array", "items": integer, "maxItems": 4},
        {"type": "array", "items": integer, "minItems": 2, "maxItems": 2},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        {"type": "array", "maxItems": 0},
        {"type": "array", "prefixItems": [integer, {"const": "x"}], "items": False, "minItems": 2},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": integer, "maxItems": 4},
        {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "maxItems": 6},
        {"type": "array", "maxItems": 3, "items": {"type": "array", "items": integer,
                                                  "maxItems": 2}},
        {"type": "array", "items": closed({"id": integer}), "minItems": 1, "maxItems": 2},
        {"type": "array", "items": {"anyOf": [integer, {"type": "null"}]}, "maxItems": 3},
    ]  # fmt: skip


def _objects() -> list[Schema]:
    integer: Schema = {"type": "integer", "minimum": 0, "maximum": 999}
    word: Schema = {"type": "string", "pattern": "^[a-z]{1,8}$"}
    return [
        closed({"name": word, "age": integer}),
        closed({"a": integer, "b": integer, "c": integer}, []),
        closed({"a": integer, "b": word}, ["b"]),
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "additionalProperties": integer, "maxProperties": 2},
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
        closed({"outer": closed({"inner": closed({"leaf": word})})}),
        closed({"with space": integer, "quote\"d": integer, "ünï": integer}),
        {"type": "object", "required": ["x"], "properties": {"x": integer, "y": word},
         "additionalProperties": False},
        closed({f"field_{i}": integer for i in range(12)}),
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
    chain: Schema = {
        "$defs": {"link": closed({"id": integer, "next": {"anyOf": [{"$ref": "#/$defs/link"},
                                                                    {"type": "null"}]}})},
        "$ref": "#/$defs/link",
    }  # fmt: skip
    return [
        {"anyOf": [integer, word]},
        {"anyOf": [circle, square]},
        {"oneOf": [circle, square]},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 30}]},
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": integer}, "required": ["a"]},
                {"properties": {"b": word}, "required": ["b"]},
            ],
            "additionalProperties": False,
            "properties": {"a": True, "b": True},
        },
        tree,
        chain,
        {"$defs": {"id": {"type": "integer", "minimum": 1, "maximum": 9}},
         **closed({"a": {"$ref": "#/$defs/id"}, "b": {"$ref": "#/$defs/id"}})},
        {"definitions": {"w": word}, **closed({"w": {"$ref": "#/definitions/w"}})},
        closed({"shape": {"anyOf": [circle, square, {"type": "null"}]}}),
        closed({"v": {"$ref": "#/properties/w"}, "w": word}),
        {"type": "array", "items": {"oneOf": [circle, square]}, "minItems": 1, "maxItems": 2},
        {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 64}]},
    ]  # fmt: skip


def _records() -> list[Schema]:
    text: Schema = {"type": "string", "maxLength": 16}
    money: Schema = {"type": "number", "minimum": 0, "maximum": 10_000}
    return [
        closed({"name": text, "email": {"type": "string", "format": "email"},
                "tags": {"type": "array", "items": text, "maxItems": 2}}),
        closed({"latitude": {"type": "number", "minimum": -90, "maximum": 90},
                "longitude": {"type": "number", "minimum": -180, "maximum": 180}}),
        closed({"order": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}, "total": money,
                "currency": {"enum": ["EUR", "USD", "JPY"]}}),
        closed({"name": {"enum": ["get_weather", "get_time"]},
                "arguments": closed({"city": text, "unit": {"enum": ["C", "F"]}}, ["city"])}),
        closed({"steps": {"type": "array", "maxItems": 2,
                          "items": closed({"explanation": text, "output": text})},
                "final_answer": text}),
        closed({"sentiment": {"enum": ["positive", "neutral", "negative"]},
                "confidence": {"type": "number", "minimum": 0, "maximum": 1}}),
        closed({"title": text, "year": {"type": "integer", "minimum": 1888, "maximum": 2100},
                "seen": {"type": "boolean"}, "rating": {"type": ["integer", "null"]}}),
        closed({"host": {"type": "string", "format": "ipv4"},
                "port": {"type": "integer", "minimum": 1, "maximum": 65_535},
                "tls": {"type": "boolean"}}, ["host", "port"]),
        closed({"event": {"const": "click"}, "at": {"type": "string", "format": "date-time"},
                "position": {"type": "array", "prefixItems": [{"type": "integer"},
                                                              {"type": "integer"}],
                             "items": False, "minItems": 2}}),
        closed({"id": {"type": "string", "format": "uuid"}, "parent": {"type": ["string", "null"],
                "maxLength": 8}}),
    ]  # fmt: skip


def schemas() -> list[Schema]:
    plain = [*_scalars(), *_arrays(), *_objects(), *_combinations(), *_records()]
    roots = [schema for schema in plain if "$ref" not in str(schema)]
    inside = [closed({"before": {"const": 0}, "value": schema}) for schema in roots]
    listed = [{"type": "array", "items": schema, "minItems": 1, "maxItems": 2} for schema in roots]
    return [*plain, *inside, *listed][:200]
