"""The fields of `/v1/completions` and `/v1/chat/completions` in OpenAI's API that are supported.

A known field that is not supported has a type that allows only values without effect. Unknown
fields are collected and ignored. Null means left out, as OpenAI's clients send it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api import limits
from api.defaults import NAMES, TOP_K, SamplingDefaults, TopK
from api.http.errors import ApiError
from api.openai.fields.constraints import Constrained
from api.openai.fields.messages import PREDICTION, Filled, Messages, Prediction, TemplateNames
from api.openai.fields.tools import (
    FUNCTION_CALL,
    TOOL_CHOICE,
    Functions,
    NamedChoice,
    NamedFunction,
    Offer,
    ToolChoice,
    Tools,
    offer_of,
)
from seams import Constraint, Sampling

MOST_CHOICES = 128
MOST_STOPS = 16  # OpenAI: 4
MOST_STOP_TOKENS = 256
MOST_BIASES = 1024
MOST_PROMPTS = 16_384  # --max-waiting allows no more
DEFAULT_COMPLETION_TOKENS = 16

Stop = Annotated[str, Field(min_length=1, max_length=limits.MOST_STOP_CHARACTERS)]
TokenIds = Annotated[list[limits.CountOrZero], Field(min_length=1, fail_fast=True)]
Verbosity = Literal["low", "medium", "high"]


def left_out() -> Any:
    return Field(None, description="left out: it is not supported")


class NotOffered(Constrained):
    """Fields of vLLM, SGLang and llama.cpp that change what a response means."""

    allowed_token_ids: None = left_out()
    bad_words: Annotated[list[Any], Field(max_length=0)] | None = left_out()
    use_beam_search: limits.No | None = left_out()
    typical_p: Annotated[float, Field(ge=1, le=1)] | None = left_out()
    repeat_penalty: Annotated[float, Field(ge=1, le=1)] | None = left_out()
    mirostat: Annotated[int, Field(ge=0, le=0)] | None = left_out()
    dry_multiplier: Annotated[float, Field(ge=0, le=0)] | None = left_out()
    xtc_probability: Annotated[float, Field(ge=0, le=0)] | None = left_out()
    dynatemp_range: Annotated[float, Field(ge=0, le=0)] | None = left_out()
    n_predict: None = left_out()
    truncate_prompt_tokens: None = left_out()
    prompt_logprobs: None = left_out()
    prompt_embeds: None = left_out()
    logits_processors: Annotated[list[Any], Field(max_length=0)] | None = left_out()
    custom_logit_processor: None = left_out()
    stop_regex: None = left_out()
    thinking_token_budget: None = left_out()
    chat_template: None = left_out()
    documents: Annotated[list[Any], Field(max_length=0)] | None = left_out()
    continue_final_message: limits.No | None = left_out()
    include_reasoning: limits.Yes | None = left_out()
    lora: Annotated[list[Any], Field(max_length=0)] | None = left_out()
    lora_path: None = left_out()


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class GenerationRequest(NotOffered):
    """`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `stop_token_ids`, `min_tokens`,
    `include_stop_str_in_output` and `priority` are vLLM's."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str | None = Field(None, description="a string, see /v1/models")
    n: int | None = Field(
        None, ge=1, le=MOST_CHOICES, description=f"a whole number from 1 to {MOST_CHOICES}"
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = Field(
        None,
        description=f"a string, or an array of up to {MOST_STOPS} strings; none of them empty or "
        f"longer than {limits.MOST_STOP_CHARACTERS} characters",
    )
    temperature: limits.Temperature | None = Field(None, description=limits.TEMPERATURE)
    top_p: limits.Share | None = Field(None, description=limits.SHARE)
    top_k: TopK | None = Field(None, description=TOP_K)
    min_p: limits.Share | None = Field(None, description=limits.SHARE)
    seed: limits.Seed | None = Field(None, description=limits.SEED)
    presence_penalty: limits.Penalty | None = Field(None, description=limits.PENALTY)
    frequency_penalty: limits.Penalty | None = Field(None, description=limits.PENALTY)
    repetition_penalty: limits.Rate | None = Field(None, description=limits.RATE)
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], limits.Bias],
            Field(max_length=MOST_BIASES),
            limits.at_most(MOST_BIASES),
        ]
        | None
    ) = Field(
        None,
        description=f"an object of up to {MOST_BIASES} token ids, each with a number from "
        f"-{limits.MOST_BIAS:.0f} to {limits.MOST_BIAS:.0f}",
    )
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description="an object with include_usage: true or false"
    )
    service_tier: Literal["auto", "default", "flex"] | None = Field(
        None, description="'auto', 'default' or 'flex'"
    )
    include_stop_str_in_output: bool | None = Field(None, description="true or false")
    ignore_eos: bool | None = Field(None, description="true or false")
    stop_token_ids: (
        Annotated[list[limits.CountOrZero], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)]
        | None
    ) = Field(None, description=f"an array of up to {MOST_STOP_TOKENS} token ids")

    min_tokens: limits.CountOrZero | None = Field(
        None, description="a whole number from 0 to the tokens that may be generated"
    )

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """How many logprobs are wanted beside each token's own; None: not even that."""

    def sampling(
        self,
        defaults: SamplingDefaults,
        end_ids: frozenset[int],
        constraint: Constraint | None,
        *,
        of_prompt: bool,
        expected_ids: Sequence[int],
    ) -> Sampling:
        """Of the first choice."""
        return replace(
            defaults.sampling(self.model_dump(include=NAMES, exclude_none=True), self.seed),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=tuple(
                {int(key): bias for key, bias in (self.logit_bias or {}).items()}.items()
            ),
            min_tokens=self.min_tokens or 0,
            end_ids=tuple(sorted(end_ids)) if self.min_tokens else (),
            logprobs=self.alternatives,
            prompt_logprobs=self.alternatives if of_prompt else None,
            constraint=constraint,
            expected_ids=tuple(expected_ids),
        )


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
    max_tokens: limits.CountOrZero | None = Field(
        None, description=f"a whole number from 0 to {limits.MOST}"
    )
    best_of: limits.Count | None = Field(
        None, description="left out or the same as 'n': more are not supported"
    )
    echo: bool | None = Field(None, description="true or false")
    logprobs: limits.TopLogprobs | None = Field(None, description=limits.TOP_LOGPROBS)
    suffix: Literal[""] | None = left_out()

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class ChatRequest(GenerationRequest):
    messages: Messages
    max_tokens: limits.Count | None = Field(None, description=limits.COUNT)
    max_completion_tokens: limits.Count | None = Field(None, description=limits.COUNT)
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: limits.TopLogprobs | None = Field(None, description=limits.TOP_LOGPROBS)
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = Field(
        None, description="left out or ['text']: no other is supported"
    )
    tools: Tools = None
    tool_choice: ToolChoice | None = Field(None, description=TOOL_CHOICE)
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    functions: Functions = None
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description=FUNCTION_CALL
    )
    chat_template_kwargs: TemplateNames = None
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
