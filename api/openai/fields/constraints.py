"""The fields that constrain an answer: OpenAI's `response_format`, vLLM's `structured_outputs` and
`guided_*`. In `response_format`, TGI's `json` and `regex` are allowed, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from api.http.errors import ApiError, invalid
from api.limits import at_most
from api.signals import Signals
from runtime.grammar.constraints import ANY_OBJECT, of_choice, of_grammar, of_schema
from runtime.grammar.grammars import GrammarError
from seams import Constraint

MOST_CHOICES = 4096
MOST_FIELDS = 16  # of structured_outputs, right or wrong

Schema = dict[str, Any]
Choices = Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]

RESPONSE_FORMAT = (
    "an object with type: 'text', 'json_object' (a schema may stand in its schema), 'json_schema' "
    "(with json_schema: {name, schema, strict}), 'json' (with value: a schema) or 'regex' (with "
    "value: a string)"
)
STRUCTURED_OUTPUTS = (
    "an object with exactly one of json (a schema), json_object (true), regex, choice and grammar"
)
SCHEMA = "a JSON schema: an object, or a string that contains one"
REGEX = "a regular expression"
CHOICES = f"an array of 1 to {MOST_CHOICES} strings"
GRAMMAR = "a grammar in Lark or GBNF"


class _Format(BaseModel):
    model_config = ConfigDict(strict=True)


class TextFormat(_Format):
    type: Literal["text"]


class ObjectFormat(_Format):
    type: Literal["json_object"]
    of: Schema | str | None = Field(
        None,
        validation_alias=AliasChoices("schema", "value"),  # llama.cpp's and others', TGI's
    )


class NamedSchema(_Format):
    name: str | None = None
    description: str | None = None
    of: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class SchemaFormat(_Format):
    type: Literal["json_schema"]
    json_schema: NamedSchema = Field(
        validation_alias=AliasChoices("json_schema", "value")  # the latter is TGI's
    )


class ValueFormat(_Format):
    type: Literal["json"]
    value: Schema | str


class RegexFormat(_Format):
    type: Literal["regex"]
    value: str


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat | ValueFormat | RegexFormat


class _Guided(BaseModel):
    guided_json: Schema | str | None = Field(None, description=SCHEMA)
    guided_regex: str | None = Field(None, description=REGEX)
    guided_choice: Choices | None = Field(None, description=CHOICES)
    guided_grammar: str | None = Field(None, description=GRAMMAR)


class _StructuredOutputs(_Guided):
    model_config = ConfigDict(
        strict=True, extra="forbid", alias_generator=lambda name: name.removeprefix("guided_")
    )

    json_object: bool | None = None


StructuredOutputs = Annotated[_StructuredOutputs, at_most(MOST_FIELDS)]


def _of_format(asked: ObjectFormat | SchemaFormat | ValueFormat | RegexFormat) -> Constraint:
    match asked:
        case ObjectFormat(of=schema):
            return of_schema(ANY_OBJECT if schema is None else schema)
        case SchemaFormat(json_schema=named):
            # without `strict`, OpenAI follows a schema as far as it can
            strict = bool(named.strict)
            return of_schema(named.of or ANY_OBJECT, lenient=not strict, strict=strict)
        case ValueFormat(value=value):
            return of_schema(value)
        case RegexFormat(value=text):
            return _of_regex(text)


def _of_structured(asked: _StructuredOutputs) -> Constraint:
    found = [(n, v) for n in _Guided.model_fields if (v := getattr(asked, n)) is not None]
    if asked.json_object and asked.guided_json is None:
        found.append(("guided_json", ANY_OBJECT))
    if len(found) != 1:
        raise invalid("structured_outputs", f"must be {STRUCTURED_OUTPUTS}, got {len(found)}")
    ((name, value),) = found
    return MAKERS[name](value)


_of_regex = partial(Constraint, "regex")
MAKERS: Mapping[str, Callable[[Any], Constraint]] = {  # by the names of the fields below
    "response_format": _of_format,
    "structured_outputs": _of_structured,
    "guided_json": of_schema,
    "guided_regex": _of_regex,
    "guided_choice": of_choice,
    "guided_grammar": of_grammar,
    "json_schema": of_schema,
    "regex": _of_regex,
    "grammar": of_grammar,
    "ebnf": of_grammar,
}


class Constrained(_Guided, Signals):
    """`structured_outputs` and `guided_*` are vLLM's; `regex` and `ebnf` are SGLang's, `grammar` is
    llama.cpp's, and `json_schema` both's."""

    response_format: ResponseFormat | None = Field(None, description=RESPONSE_FORMAT)
    structured_outputs: StructuredOutputs | None = Field(None, description=STRUCTURED_OUTPUTS)
    json_schema: Schema | str | None = Field(None, description=SCHEMA)
    regex: str | None = Field(None, description=REGEX)
    grammar: str | None = Field(None, description=GRAMMAR)
    ebnf: str | None = Field(None, description=GRAMMAR)

    def constraint(self) -> tuple[str, Constraint] | None:
        """And before it the field that has it; None: the answer is free. Raises ApiError."""
        given = [(field, getattr(self, field)) for field in MAKERS]
        found = [(f, v) for f, v in given if v is not None and not isinstance(v, TextFormat)]
        if not found:
            return None
        if len(found) > 1:
            names = " and ".join(repr(field) for field, _ in found)
            raise ApiError(400, f"only one constraint is allowed, got {names}", param=found[1][0])
        ((field, value),) = found
        try:
            return field, MAKERS[field](value)
        except GrammarError as error:
            raise invalid(field, f"is not valid: {error}") from None
