"""The tools of a chat, as clients send them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field

from api.openai.fields.messages import MOST_DEPTH, Filled, nested_deeper
from runtime.grammar.schemas import enforceable
from text.tools.conversation import Tool as TemplateTool

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
FUNCTIONS = f"an array of up to {MOST_TOOLS} functions, as those of 'tools'"
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


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


def _bounded(value: Any) -> Any:
    if nested_deeper(value, MOST_DEPTH):
        raise ValueError("nested too deeply")
    if len(json.dumps(value, ensure_ascii=False)) > MOST_CHARACTERS:
        raise ValueError("too long")
    return value


_LIMITS = Field(max_length=MOST_TOOLS, fail_fast=True), BeforeValidator(_bounded)
Tools = Annotated[list[Tool], *_LIMITS]
Functions = Annotated[list[Function], *_LIMITS]  # before there were tools


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
