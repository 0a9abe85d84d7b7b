"""The fields of `/v1/completions` and `/v1/chat/completions` in OpenAI's API that are supported."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from api.http.errors import ApiError
from api.limits import (
    COUNT,
    MOST,
    TOP_LOGPROBS,
    Count,
    CountOrZero,
    TopLogprobs,
)
from api.openai.fields.messages import (
    MESSAGES,
    PREDICTION,
    TEMPLATE_NAMES,
    Filled,
    Messages,
    Prediction,
    TemplateNames,
    text_of,
)
from api.openai.fields.shared import GenerationRequest, Verbosity, left_out
from api.openai.fields.tools import (
    FUNCTION_CALL,
    FUNCTIONS,
    TOOL_CHOICE,
    TOOLS,
    Functions,
    NamedChoice,
    NamedFunction,
    ToolChoice,
    Tools,
)
from api.openai.offer import Offer, offer_of

MOST_PROMPTS = 16_384  # --max-waiting allows no more
DEFAULT_COMPLETION_TOKENS = 16

TokenIds = Annotated[list[CountOrZero], Field(min_length=1, fail_fast=True)]


class CompletionRequest(GenerationRequest):
    prompt: (
        Filled
        | Annotated[list[Filled], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
    ) = Field(
        description="a string, an array of strings, of token ids, or of arrays of token ids; "
        f"none of them empty, and at most {MOST_PROMPTS} strings or arrays"
    )
    max_tokens: CountOrZero | None = Field(None, description=f"a whole number from 0 to {MOST}")
    best_of: Count | None = Field(
        None, description="left out or the same as 'n': more are not supported"
    )
    echo: bool | None = Field(None, description="true or false")
    logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    suffix: Literal[""] | None = left_out()

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class ChatRequest(GenerationRequest):
    messages: Messages = Field(description=MESSAGES)
    max_tokens: Count | None = Field(None, description=COUNT)
    max_completion_tokens: Count | None = Field(None, description=COUNT)
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = Field(
        None, description="left out or ['text']: no other is supported"
    )
    tools: Tools | None = Field(None, description=TOOLS)
    tool_choice: ToolChoice | None = Field(None, description=TOOL_CHOICE)
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    functions: Functions | None = Field(None, description=FUNCTIONS)
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description=FUNCTION_CALL
    )
    chat_template_kwargs: TemplateNames | None = Field(None, description=TEMPLATE_NAMES)
    add_generation_prompt: bool | None = Field(None, description="true or false")
    reasoning_effort: str | None = Field(None, description="a string")
    verbosity: Verbosity | None = Field(None, description="'low', 'medium' or 'high'")
    audio: None = left_out()
    prediction: Prediction | None = Field(None, description=PREDICTION)
    web_search_options: None = left_out()

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def template_names(self) -> dict[str, Any]:
        """What the template gets beside the conversation, if it knows it."""
        hints = {"reasoning_effort": self.reasoning_effort, "verbosity": self.verbosity}
        names: dict[str, Any] = {name: hint for name, hint in hints.items() if hint is not None}
        if self.reasoning_effort == "none":
            names["enable_thinking"] = False
        return names | (self.chat_template_kwargs or {})

    @property
    def expected(self) -> str | None:
        return None if self.prediction is None else text_of(self.prediction.content)

    @property
    def offer(self) -> Offer | None:
        """The tools that the answer may call. Raises ApiError."""
        if not self.of_functions:
            functions = [tool.function for tool in self.tools or ()]
            return offer_of(functions, self.tool_choice, self.parallel_tool_calls)
        if self.tools:
            raise ApiError(400, "only one of 'tools' and 'functions' is allowed", param="functions")
        choice = self.function_call
        named = NamedChoice(function=choice) if isinstance(choice, NamedFunction) else choice
        return offer_of(self.functions or [], named, parallel=False, field="functions")

    @property
    def of_functions(self) -> bool:
        """The call is in the form that OpenAI's API had before tools."""
        return bool(self.functions) or isinstance(self.function_call, NamedFunction)
