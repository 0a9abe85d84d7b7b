"""The fields of `/v1/completions` and `/v1/chat/completions` in OpenAI's API that are supported.

A known field that is not supported has a type that allows only values without effect. Unknown
fields are collected and ignored. Null means left out, as OpenAI's clients send it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.http.errors import ApiError
from api.limits import (
    COUNT,
    MOST,
    MOST_BIAS,
    PENALTY,
    RATE,
    SEED,
    SHARE,
    TEMPERATURE,
    TOP_LOGPROBS,
    Bias,
    Count,
    CountOrZero,
    Penalty,
    Rate,
    Seed,
    Share,
    Temperature,
    TopLogprobs,
    at_most,
    mass,
)
from api.openai.fields.constraints import (
    CHOICES,
    GRAMMAR,
    REGEX,
    RESPONSE_FORMAT,
    SCHEMA,
    STRUCTURED_OUTPUTS,
    Choices,
    ResponseFormat,
    Schema,
    StructuredOutputs,
)
from api.openai.fields.messages import MESSAGES, Filled, Messages, Text
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
from api.signals import Signals
from requested import Constraint, Sampling, ServiceClass

MOST_CHOICES = 128
MOST_STOPS = 16  # OpenAI: 4
MOST_STOP_TOKENS = 256
MOST_BIASES = 1024
MOST_PROMPTS = 16_384  # --max-waiting allows no more
DEFAULT_COMPLETION_TOKENS = 16

TokenIds = Annotated[list[CountOrZero], Field(min_length=1, fail_fast=True)]


def _left_out() -> Any:
    return Field(None, description="left out: it is not supported")


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class GenerationRequest(Signals):
    """What both have in common. `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`,
    `stop_token_ids`, `min_tokens`, `priority`, `structured_outputs` and `guided_*` are vLLM's."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: Text | None = Field(None, description="a string, see /v1/models")
    n: int | None = Field(
        None, ge=1, le=MOST_CHOICES, description=f"a whole number from 1 to {MOST_CHOICES}"
    )
    stop: Filled | Annotated[list[Filled], Field(max_length=MOST_STOPS, fail_fast=True)] | None = (
        Field(
            None,
            description=f"a string, or an array of up to {MOST_STOPS} strings; none of them empty",
        )
    )
    temperature: Temperature | None = Field(None, description=TEMPERATURE)
    top_p: Share | None = Field(None, description=SHARE)
    top_k: Annotated[int, Field(ge=-1, le=MOST)] | None = Field(
        None, description=f"{COUNT}; 0 or -1: no limit"
    )
    min_p: Share | None = Field(None, description=SHARE)
    seed: Seed | None = Field(None, description=SEED)
    presence_penalty: Penalty | None = Field(None, description=PENALTY)
    frequency_penalty: Penalty | None = Field(None, description=PENALTY)
    repetition_penalty: Rate | None = Field(None, description=RATE)
    logit_bias: (
        Annotated[
            dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias],
            Field(max_length=MOST_BIASES),
            at_most(MOST_BIASES),
        ]
        | None
    ) = Field(
        None,
        description=f"an object of up to {MOST_BIASES} token ids, each with a number from "
        f"-{MOST_BIAS:.0f} to {MOST_BIAS:.0f}",
    )
    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(
        None, description="an object with include_usage: true or false"
    )
    service_tier: Literal["auto", "default", "flex"] | None = Field(
        None, description="'auto', 'default' or 'flex'"
    )
    ignore_eos: bool | None = Field(None, description="true or false")
    stop_token_ids: (
        Annotated[list[CountOrZero], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)] | None
    ) = Field(None, description=f"an array of up to {MOST_STOP_TOKENS} token ids")

    min_tokens: CountOrZero | None = Field(
        None, description="a whole number from 0 to the tokens that may be generated"
    )

    response_format: ResponseFormat | None = Field(None, description=RESPONSE_FORMAT)
    structured_outputs: StructuredOutputs | None = Field(None, description=STRUCTURED_OUTPUTS)
    guided_json: Schema | Text | None = Field(None, description=SCHEMA)
    guided_regex: Text | None = Field(None, description=REGEX)
    guided_choice: Choices | None = Field(None, description=CHOICES)
    guided_grammar: Text | None = Field(None, description=GRAMMAR)

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def service_class(self) -> ServiceClass:
        return "deferred" if self.service_tier == "flex" else "immediate"

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """How many logprobs are wanted beside each token's own; None: not even that."""

    def sampling(
        self,
        seed: int,
        end_ids: frozenset[int],
        *,
        of_prompt: bool = False,
        constraint: Constraint | None = None,
    ) -> Sampling:
        return Sampling(
            seed=seed,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k if self.top_k and self.top_k > 0 else None,
            top_p=1.0 if self.top_p is None else mass(self.top_p),
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
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
    max_tokens: CountOrZero | None = Field(None, description=f"a whole number from 0 to {MOST}")
    best_of: Count | None = Field(
        None, description="left out or the same as 'n': more are not supported"
    )
    echo: bool | None = Field(None, description="true or false")
    logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    suffix: Literal[""] | None = _left_out()

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
    audio: None = _left_out()
    prediction: None = _left_out()
    web_search_options: None = _left_out()

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

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


def seed_of_choice(seed: int, index: int) -> int:
    """Choice 0 has the request's own seed and so equals the request alone."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
