"""Constraints from what clients write: schemas, choices, and grammars in two notations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from runtime.grammar.grammars import GrammarError
from runtime.grammar.schemas import enforceable
from seams import Constraint

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
