"""What of schemas is enforced where llguidance alone lets it pass, and what is refused instead."""

from __future__ import annotations

import datetime
import json
from contextlib import nullcontext
from typing import Any

import pytest

from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import GrammarError, Grammars
from tests.runtime.grammar.conftest import of_bytes, takes
from tests.runtime.grammar.schemas import closed

INTEGER: dict[str, Any] = {"type": "integer"}
NAMED: dict[str, Any] = {"type": "object", "properties": {"a": INTEGER}}
OTHERS: dict[str, Any] = {"type": "object", "additionalProperties": INTEGER}
PATTERNS: dict[str, Any] = {"type": "object", "patternProperties": {"^a": INTEGER}}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(of_bytes)


@pytest.mark.parametrize(
    ("schema", "text", "taken"),
    [
        (NAMED, r'{"\u0061": "x"}', False),
        ({"const": {"\x01": "\x00"}}, r'{"\u0001": "\u0000"}', True),
        ({"properties": {"a": INTEGER}}, '{"a": 3}', True),
        ({"prefixItems": [{"required": ["a"]}]}, "[3]", False),
        ({"$defs": {"d": {"items": {}}}, "anyOf": [{"$ref": "#/$defs/d"}]}, "{}", False),
        ({"properties": {}, "items": {}}, "3", False),
        (closed({"properties": INTEGER, "items": INTEGER}), '{"properties": 1, "items": 2}', True),
        ({"type": "string", "format": "date", "pattern": "^20"}, '"1999-01-01"', False),
        ({"format": "date", "pattern": "^20", "allOf": [{"pattern": "2$"}]}, '"2001-01-01"', False),
        ({"format": "date", "pattern": "^20", "allOf": [{"pattern": "2$"}]}, '"2001-01-02"', True),
        ({"type": "string", "format": "date-time"}, '"2023-02-28T23:59:59.5+01:00"', True),
        ({"type": "string", "format": "date-time"}, '"2023-02-29T23:59:59Z"', False),
    ],
)
def test_a_grammar_takes_what_its_schema_means(
    grammars: Grammars, schema: dict[str, Any], text: str, taken: bool
) -> None:
    assert takes(grammars.compiled(of_schema(schema)), text) == taken


def test_an_implied_type_makes_no_schemas_disjoint(grammars: Grammars) -> None:
    """A value of another type is one of both."""
    schema = {"oneOf": [{"properties": {"a": INTEGER}}, {"anyOf": [{"items": {}}]}, INTEGER]}
    with pytest.raises(GrammarError, match="oneOf"):
        grammars.compiled(of_schema(schema))
    lenient = grammars.compiled(of_schema(schema, lenient=True))
    assert [takes(lenient, text) for text in ("3", '{"a": 3}', '"x"')] == [True, True, False]


def test_a_date_is_one_of_the_calendar(grammars: Grammars) -> None:
    compiled = grammars.compiled(of_schema({"type": "string", "format": "date"}))
    years = (1900, 2000, 2023, 2024, 2100)
    for text in (f"{y}-{m:02}-{d:02}" for y in years for m in range(14) for d in range(33)):
        try:
            datetime.date.fromisoformat(text)
        except ValueError:
            assert not takes(compiled, json.dumps(text))
        else:
            assert takes(compiled, json.dumps(text))


@pytest.mark.parametrize(
    ("schema", "strict", "key"),
    [
        ({**OTHERS, "minProperties": 2}, False, "minProperties"),
        (OTHERS, True, "additionalProperties"),
        (PATTERNS, True, "patternProperties"),
        (closed({"a": {"anyOf": [OTHERS, {"type": "null"}]}}), True, "additionalProperties"),
        # no key that comes twice can satisfy these
        ({**OTHERS, "maxProperties": 1}, True, None),
        ({**NAMED, "required": ["a"], "minProperties": 2}, True, None),
        (closed({"a": INTEGER, "b": INTEGER}, minProperties=2), True, None),
    ],
)
def test_what_a_key_that_comes_twice_would_satisfy_is_refused(
    grammars: Grammars, schema: dict[str, Any], strict: bool, key: str | None
) -> None:
    refused = pytest.raises(GrammarError, match=f"{key} .*may come twice; allowed: ")
    with refused if key else nullcontext():
        of_schema(schema, strict=strict)
    grammars.compiled(of_schema(schema, lenient=key is not None, strict=key is None))
