"""The tools of a chat: as clients send them, what the model may and must call, the grammar that
keeps it to that, and how calls are found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field

from api.http.errors import invalid, show
from api.openai.fields.messages import MOST_DEPTH, Filled, nested_deeper
from runtime.grammar.constraints import enforceable
from runtime.grammar.grammars import GrammarError
from seams import Constraint
from text.tools.conversation import Tool as TemplateTool
from text.tools.forms import CallForm
from text.tools.grammar import (
    grammar_of_calls,
    grammar_of_text_with_calls,
    of_lark,
    of_regex,
    of_schema,
)
from text.tools.parsing import (
    CallOrTextParser,
    CallParser,
    ForcedCallParser,
    Parser,
    StrictCallParser,
)

MOST_TOOLS = 128  # as OpenAI's
MOST_CHARACTERS = 2**18  # of their JSON
MOST_NAME = 64
NAME = rf"^[a-zA-Z0-9_-]{{1,{MOST_NAME}}}$"
TOOLS = (
    f"an array of up to {MOST_TOOLS} tools of type 'function', each with function: name (up to 64 "
    "letters, digits, '_' and '-'), description (a string) and parameters (a JSON schema of type "
    f"'object'); at most {MOST_CHARACTERS} characters of JSON in all, nested at most {MOST_DEPTH} "
    "deep"
)
FUNCTION_CALL = "'none', 'auto', or an object with the name of one of the functions"
TOOL_CHOICE = (
    "'none', 'auto', 'required', or one of the tools: its name, or an object with type 'function' "
    "and function: name; or an object with type 'allowed_tools' and allowed_tools: mode ('auto' or "
    "'required') and tools (each with type 'function' and function: name)"
)


def _of_objects(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError("arguments are an object")
    return schema


class Function(BaseModel):
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
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
        """Without `strict`, keywords that cannot be enforced are ignored, as in OpenAI's API.
        Raises GrammarError."""
        if self.parameters is None:
            return {**self.schema_of_arguments, "additionalProperties": False}
        return enforceable(
            self.schema_of_arguments, lenient=not self.strict, strict=bool(self.strict)
        )

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


class ChatTool(BaseModel):
    type: Literal["function"]
    function: Function


def _bounded(value: Any) -> Any:
    if nested_deeper(value, MOST_DEPTH):
        raise ValueError("nested too deeply")
    if len(json.dumps(value, ensure_ascii=False)) > MOST_CHARACTERS:
        raise ValueError("too long")
    return value


_LIMITS = Field(max_length=MOST_TOOLS, fail_fast=True), BeforeValidator(_bounded)
Tools = Annotated[Annotated[list[ChatTool], *_LIMITS] | None, Field(description=TOOLS)]
Functions = Annotated[  # before there were tools
    Annotated[list[Function], *_LIMITS] | None,
    Field(description=f"an array of up to {MOST_TOOLS} functions, as those of 'tools'"),
]


class NamedFunction(BaseModel):
    name: Filled


class NamedChoice(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedTools(BaseModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


class AllowedChoice(BaseModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Filled | NamedChoice | AllowedChoice


CHOICE_OF_FUNCTIONS = "function_call", FUNCTION_CALL

FieldConstraint = tuple[str, Constraint]  # and the field that asks for it


@dataclass(frozen=True, slots=True)
class Offer:
    """`functions`: in the prompt. `allowed`: those of them that an answer may call. `must`: it
    calls. `field`: has the functions."""

    functions: Sequence[Function]
    allowed: Sequence[Function]
    must: bool
    most_calls: int | None  # None: any number
    field: str

    def for_template(self) -> list[TemplateTool]:
        return [function.for_template() for function in self.functions]

    def rules(
        self, form: CallForm, special_ids: Mapping[str, int], wanted: FieldConstraint | None
    ) -> tuple[FieldConstraint | None, Callable[[], Parser]]:
        """What an answer must be, and what finds the calls in it. `wanted`: what it must be where
        it does not call. Raises ApiError."""
        try:
            schemas = {one.name: one.enforced_schema for one in self.allowed}
        except GrammarError as error:
            raise invalid(self.field, f"is not valid: {error}") from None
        several = self.most_calls is None
        of_calls = partial(
            grammar_of_calls, form, schemas, several=several, special_ids=special_ids
        )
        found = partial(CallParser, form, schemas, self.most_calls)
        if self.must:
            return (self.field, Constraint("lark", of_calls())), ForcedCallParser
        if wanted is not None:
            field, constraint = wanted
            grammar = of_calls(answer=rule_of(constraint))
            either = partial(CallOrTextParser, form.opening)
            return (field, Constraint("lark", grammar)), either
        if any(one.strict for one in self.allowed):
            grammar = grammar_of_text_with_calls(
                form, schemas, several=several, special_ids=special_ids
            )
            kept = partial(StrictCallParser, form, schemas, self.most_calls)
            return (self.field, Constraint("lark", grammar)), kept
        return None, found


def rule_of(constraint: Constraint) -> str:
    """The right side of a rule for its texts."""
    match constraint.kind:
        case "json_schema":
            return of_schema(json.loads(constraint.text))
        case "regex":
            return of_regex(constraint.text)
        case "lark":
            return of_lark(constraint.text)


def offer_of(
    functions: Sequence[Function],
    choice: ToolChoice | None,
    parallel: bool | None = None,
    *,
    field: str = "tools",
) -> Offer | None:
    """None where nothing may be called. Raises ApiError."""
    counted = Counter(function.name for function in functions)
    if repeated := [name for name, count in counted.items() if count > 1]:
        name, times = repeated[0], counted[repeated[0]]
        raise invalid(field, f"must have each name once, got {show(name)} {times} times")
    most_calls = 1 if parallel is False else None
    match choice:
        case "none":
            return None
        case None | "auto":
            every = Offer(functions, functions, False, most_calls, field)
            return every if functions else None
        case "required":
            named, must = list(counted), True
        case AllowedChoice(allowed_tools=some):
            named, must = [one.function.name for one in some.tools], some.mode == "required"
        case _:
            named, must = [choice if isinstance(choice, str) else choice.function.name], True
            most_calls = 1
    unknown = [name for name in named if name not in counted]
    if unknown or not named:
        of_tools = field == "tools"
        param, wanted = ("tool_choice", TOOL_CHOICE) if of_tools else CHOICE_OF_FUNCTIONS
        got, known = unknown[0] if unknown else choice, ", ".join(map(show, counted))
        raise invalid(param, f"must be {wanted}, got {show(got)}; {field}: {known or 'none'}")
    allowed = [function for function in functions if function.name in named]
    return Offer(functions, allowed, must, most_calls, field)
