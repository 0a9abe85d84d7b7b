"""The fields that all calls of OpenAI's API which generate have in common.

A known field that is not supported has a type that allows only values without effect. Unknown
fields are collected and ignored. Null means left out, as OpenAI's clients send it.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.defaults import TOP_K, SamplingDefaults, TopK
from api.limits import (
    MOST_BIAS,
    MOST_STOP_CHARACTERS,
    PENALTY,
    RATE,
    SEED,
    SHARE,
    TEMPERATURE,
    Bias,
    CountOrZero,
    Penalty,
    Rate,
    Seed,
    Share,
    Temperature,
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
from api.signals import Signals
from requested import Constraint, Sampling, ServiceClass

MOST_CHOICES = 128
MOST_STOPS = 16  # OpenAI: 4
MOST_STOP_TOKENS = 256
MOST_BIASES = 1024

Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS)]


Verbosity = Literal["low", "medium", "high"]


def left_out() -> Any:
    return Field(None, description="left out: it is not supported")


class NotOffered(Signals):
    """Fields of vLLM, SGLang and llama.cpp that change what a response means."""

    allowed_token_ids: None = left_out()
    bad_words: Annotated[list[Any], Field(max_length=0)] | None = left_out()
    use_beam_search: Literal[False] | None = left_out()
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
    continue_final_message: Literal[False] | None = left_out()
    include_reasoning: Literal[True] | None = left_out()
    lora: Annotated[list[Any], Field(max_length=0)] | None = left_out()
    lora_path: None = left_out()


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class GenerationRequest(NotOffered):
    """`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `stop_token_ids`, `min_tokens`,
    `include_stop_str_in_output`, `priority`, `structured_outputs` and `guided_*` are vLLM's;
    `regex` and `ebnf` are SGLang's, `grammar` is llama.cpp's, and `json_schema` both's."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str | None = Field(None, description="a string, see /v1/models")
    n: int | None = Field(
        None, ge=1, le=MOST_CHOICES, description=f"a whole number from 1 to {MOST_CHOICES}"
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = Field(
        None,
        description=f"a string, or an array of up to {MOST_STOPS} strings; none of them empty or "
        f"longer than {MOST_STOP_CHARACTERS} characters",
    )
    temperature: Temperature | None = Field(None, description=TEMPERATURE)
    top_p: Share | None = Field(None, description=SHARE)
    top_k: TopK | None = Field(None, description=TOP_K)
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
    include_stop_str_in_output: bool | None = Field(None, description="true or false")
    ignore_eos: bool | None = Field(None, description="true or false")
    stop_token_ids: (
        Annotated[list[CountOrZero], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)] | None
    ) = Field(None, description=f"an array of up to {MOST_STOP_TOKENS} token ids")

    min_tokens: CountOrZero | None = Field(
        None, description="a whole number from 0 to the tokens that may be generated"
    )

    response_format: ResponseFormat | None = Field(None, description=RESPONSE_FORMAT)
    structured_outputs: StructuredOutputs | None = Field(None, description=STRUCTURED_OUTPUTS)
    guided_json: Schema | str | None = Field(None, description=SCHEMA)
    guided_regex: str | None = Field(None, description=REGEX)
    guided_choice: Choices | None = Field(None, description=CHOICES)
    guided_grammar: str | None = Field(None, description=GRAMMAR)
    json_schema: Schema | str | None = Field(None, description=SCHEMA)
    regex: str | None = Field(None, description=REGEX)
    grammar: str | None = Field(None, description=GRAMMAR)
    ebnf: str | None = Field(None, description=GRAMMAR)

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
    def expected(self) -> str | None:
        """The answer that the client expects; None: it does not say."""
        return None

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """How many logprobs are wanted beside each token's own; None: not even that."""

    def chosen(self, defaults: SamplingDefaults) -> SamplingDefaults:
        said = {name for name in self.model_fields_set if getattr(self, name) is not None}
        return defaults.under(self, said)

    def sampling(
        self,
        seed: int,
        end_ids: frozenset[int],
        defaults: SamplingDefaults,
        *,
        of_prompt: bool = False,
        constraint: Constraint | None = None,
        expected_ids: Sequence[int] = (),
    ) -> Sampling:
        chosen = self.chosen(defaults)
        return Sampling(
            seed=seed,
            temperature=chosen.temperature,
            top_k=chosen.best,
            top_p=mass(chosen.top_p),
            min_p=chosen.min_p,
            repetition_penalty=chosen.repetition_penalty,
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


def seed_of_choice(seed: int, index: int) -> int:
    """Choice 0 has the request's own seed and so equals the request alone."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
