"""The tools of a chat: what a client offers, and what the model may and must call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field

from api.http.errors import ApiError, show
from api.openai.messages import MOST_DEPTH, Filled, Text, nested_deeper
from requested import Constraint
from text.tools.conversation import Tool as TemplateTool
from text.tools.forms import CallForm
from text.tools.grammar import grammar_of_calls, of_regex, of_schema
from text.tools.parsing import CallParser, ForcedCallParser, Parser

MOST_TOOLS = 128  # as OpenAI's
MOST_CHARACTERS = 2**18  # of their JSON
NAME = r"^[a-zA-Z0-9_-]{1,64}$"
TOOLS = (
    f"an array of up to {MOST_TOOLS} tools of type 'function', each with function: name (up to 64 "
    "letters, digits, '_' and '-'), description (a string) and parameters (a JSON schema of type "
    f"'object'); at most {MOST_CHARACTERS} characters of JSON in all, nested at most {MOST_DEPTH} "
    "deep"
)
TOOL_CHOICE = (
    "'none', 'auto', 'required', or one of the tools: its name, or an object with type 'function' "
    "and function: name"
)


def _of_objects(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("arguments are an object")
    return schema


class Function(BaseModel):
    name: Annotated[str, Field(pattern=NAME)]
    description: Text | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_of_objects)] | None = Field(
        None,
        validation_alias=AliasChoices("parameters", "arguments"),  # the latter as in TGI
    )
    strict: bool | None = None

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}, **(self.parameters or {})}

    @property
    def enforced_schema(self) -> dict[str, Any]:
        """Without `strict`, keywords that cannot be enforced are ignored, as in OpenAI's API."""
        if self.parameters is None:
            return {**self.schema_of_arguments, "additionalProperties": False}
        return {**self.schema_of_arguments, "x-guidance": {"lenient": not self.strict}}

    def for_template(self) -> TemplateTool:
        """With a description, as templates expect one."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description or "",
                "parameters": self.schema_of_arguments,
            },
        }


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


def _bounded(value: Any) -> Any:
    if nested_deeper(value, MOST_DEPTH):
        raise ValueError("nested too deeply")
    if len(json.dumps(value, ensure_ascii=False)) > MOST_CHARACTERS:
        raise ValueError("too long")
    return value


Tools = Annotated[
    list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True), BeforeValidator(_bounded)
]


class NamedFunction(BaseModel):
    name: Filled


class NamedChoice(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


ToolChoice = Filled | NamedChoice
FieldConstraint = tuple[str, Constraint]  # and the field that asks for it


@dataclass(frozen=True, slots=True)
class Offer:
    """The functions that an answer may call. `forced`: it must call, and only these."""

    functions: Sequence[Function]
    forced: Sequence[Function]
    most_calls: int | None  # None: any number

    def for_template(self) -> list[TemplateTool]:
        return [function.for_template() for function in self.functions]

    def parser(self, form: CallForm) -> Parser:
        if self.forced:
            return ForcedCallParser()
        names = frozenset(function.name for function in self.functions)
        return CallParser(form, names, self.most_calls)

    def constraint(
        self, form: CallForm, special_ids: Mapping[str, int], wanted: FieldConstraint | None
    ) -> FieldConstraint | None:
        """What the answer must be, and the field that says so. `wanted`: what it must be where it
        does not call; calls stay possible beside it. Raises ApiError."""
        if not self.forced and wanted is None:
            return None
        field, rule = ("tools", None) if wanted is None or self.forced else _as_rule(*wanted)
        schemas = {one.name: one.enforced_schema for one in self.forced or self.functions}
        several = self.most_calls is None
        grammar = grammar_of_calls(
            form, schemas, several=several, special_ids=special_ids, answer=rule
        )
        return field, Constraint("lark", grammar)


def _as_rule(field: str, constraint: Constraint) -> tuple[str, str]:
    match constraint.kind:
        case "json_schema":
            return field, of_schema(json.loads(constraint.text))
        case "regex":
            return field, of_regex(constraint.text)
    raise ApiError(
        400,
        f"field '{field}' must be a JSON schema or a regular expression beside 'tools' that may be "
        "called; a grammar needs 'tool_choice' to be 'none'",
        param=field,
    )


def offer_of(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, parallel: bool | None
) -> Offer | None:
    """None where nothing may be called. Raises ApiError."""
    functions = [tool.function for tool in tools or ()]
    counted = Counter(function.name for function in functions)
    if repeated := [name for name, count in counted.items() if count > 1]:
        raise ApiError(
            400,
            f"field 'tools' must have each name once, got {show(repeated[0])} "
            f"{counted[repeated[0]]} times",
            param="tools",
        )
    match choice:
        case "none":
            return None
        case None | "auto":
            return Offer(functions, (), 1 if parallel is False else None) if functions else None
        case "required":
            forced, most_calls = functions, 1 if parallel is False else None
        case _:
            name = choice if isinstance(choice, str) else choice.function.name
            forced, most_calls = [one for one in functions if one.name == name], 1
    if not forced:
        raise ApiError(
            400,
            f"field 'tool_choice' must be {TOOL_CHOICE}, got "
            f"{show(choice if isinstance(choice, str) else choice.function.name)}; tools: "
            + (", ".join(map(show, counted)) or "none"),
            param="tool_choice",
        )
    return Offer(functions, forced, most_calls)
