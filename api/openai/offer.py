"""What the model may and must call, the grammar that keeps it to that, and how calls are found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from api.http.errors import ApiError, show
from api.openai.fields.tools import FUNCTION_CALL, TOOL_CHOICE, AllowedChoice, Function, ToolChoice
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
from text.tools.kept import ForcedCallParser, StrictCallParser
from text.tools.parsing import CallParser, Parser

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
            raise ApiError(400, f"field '{self.field}': {error}", param=self.field) from None
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
            return (field, Constraint("lark", grammar)), found
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
        raise ApiError(
            400,
            f"field '{field}' must have each name once, got {show(repeated[0])} "
            f"{counted[repeated[0]]} times",
            param=field,
        )
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
        raise ApiError(
            400,
            f"field '{param}' must be {wanted}, got "
            f"{show(unknown[0] if unknown else choice)}; {field}: "
            + (", ".join(map(show, counted)) or "none"),
            param=param,
        )
    allowed = [function for function in functions if function.name in named]
    return Offer(functions, allowed, must, most_calls, field)
