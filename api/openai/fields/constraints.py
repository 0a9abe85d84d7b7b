"""The fields that constrain an answer: OpenAI's `response_format`, vLLM's `structured_outputs` and
`guided_*`. In `response_format`, TGI's `json` and `regex` are allowed, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Protocol

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from api.http.errors import ApiError
from api.limits import at_most
from requested import Constraint
from runtime.grammar.constraints import ANY_OBJECT, of_choice, of_grammar, of_schema
from runtime.grammar.grammars import GrammarError

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


class _StructuredOutputs(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    of_schema: Schema | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


StructuredOutputs = Annotated[_StructuredOutputs, at_most(MOST_FIELDS)]


class Constrained(Protocol):
    """The fields of a request."""

    @property
    def response_format(self) -> ResponseFormat | None: ...

    @property
    def structured_outputs(self) -> _StructuredOutputs | None: ...

    @property
    def guided_json(self) -> Schema | str | None: ...

    @property
    def guided_regex(self) -> str | None: ...

    @property
    def guided_choice(self) -> list[str] | None: ...

    @property
    def guided_grammar(self) -> str | None: ...

    @property
    def json_schema(self) -> Schema | str | None: ...

    @property
    def regex(self) -> str | None: ...

    @property
    def grammar(self) -> str | None: ...

    @property
    def ebnf(self) -> str | None: ...


def constraint_of(wanted: Constrained) -> tuple[str, Constraint] | None:
    """The request's constraint, and the field that has it; None: its answer is free. Raises
    ApiError."""
    found = list(_given(wanted))
    if len(found) > 1:
        names = " and ".join(repr(field) for field, _ in found)
        raise ApiError(400, f"only one constraint is allowed, got {names}", param=found[1][0])
    if not found:
        return None
    ((field, make),) = found
    try:
        return field, make()
    except GrammarError as error:
        raise ApiError(400, f"field '{field}': {error}", param=field) from None


def _given(wanted: Constrained) -> Iterator[tuple[str, Callable[[], Constraint]]]:
    match wanted.response_format:
        case ObjectFormat(of=schema):
            yield "response_format", partial(of_schema, ANY_OBJECT if schema is None else schema)
        case SchemaFormat(json_schema=named):
            # without `strict`, OpenAI follows a schema as far as it can
            yield (
                "response_format",
                partial(
                    of_schema,
                    named.of or ANY_OBJECT,
                    lenient=not named.strict,
                    strict=bool(named.strict),
                ),
            )
        case ValueFormat(value=value):
            yield "response_format", partial(of_schema, value)
        case RegexFormat(value=text):
            yield "response_format", partial(Constraint, "regex", text)
    if (asked := wanted.structured_outputs) is not None:
        found = list(
            _of(
                ("structured_outputs",) * 4,
                ANY_OBJECT if asked.json_object and asked.of_schema is None else asked.of_schema,
                asked.regex,
                asked.choice,
                asked.grammar,
            )
        )
        if len(found) != 1:
            raise ApiError(
                400,
                f"field 'structured_outputs' must be {STRUCTURED_OUTPUTS}, got {len(found)}",
                param="structured_outputs",
            )
        yield from found
    yield from _of(
        ("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        wanted.guided_json,
        wanted.guided_regex,
        wanted.guided_choice,
        wanted.guided_grammar,
    )
    names = "json_schema", "regex", "choice", "grammar"
    yield from _of(names, wanted.json_schema, wanted.regex, None, wanted.grammar)
    if wanted.ebnf is not None:
        yield "ebnf", partial(of_grammar, wanted.ebnf)


def _of(
    fields: tuple[str, str, str, str],
    schema: Mapping[str, Any] | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> Iterator[tuple[str, Callable[[], Constraint]]]:
    if schema is not None:
        yield fields[0], partial(of_schema, schema)
    if regex is not None:
        yield fields[1], partial(Constraint, "regex", regex)
    if choice is not None:
        yield fields[2], partial(of_choice, choice)
    if grammar is not None:
        yield fields[3], partial(of_grammar, grammar)
