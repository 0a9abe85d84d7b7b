"""The requests of TGI's API: fields, defaults, and messages of its validation.

Names, defaults and messages follow text-generation-inference's router (`router/src/lib.rs`,
`router/src/validation.rs`), so that clients can rely on them here, too. Independent of the queue.
"""

from __future__ import annotations

import functools
import heapq
import logging
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.defaults import NAMES, SamplingDefaults
from api.http.errors import ApiError, explain, show
from api.limits import (
    COOLEST,
    HOTTEST,
    LEAST_MASS,
    LEAST_RATE,
    MOST,
    MOST_PENALTY,
    MOST_RATE,
    MOST_STOP_CHARACTERS,
    SEED,
    CountOrZero,
    Seed,
)
from api.signals import Signals
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import GrammarError
from seams import Constraint, Sampling
from serving.config import Config

log = logging.getLogger(__name__)

NEUTRAL = SamplingDefaults()  # not the model's
NOT_OFFERED = ("watermark", "adapter_id")
UNKNOWN_LOGGED = 256  # names of unknown fields that are logged, each once
MOST_UNKNOWN = 8  # of them that a request may have logged

Schema = TypeVar("Schema", bound=BaseModel)

Texts = Annotated[list[str], Field(fail_fast=True)]


class Grammar(BaseModel):
    """`json_schema` has the schema in the value's `schema`, beside its name."""

    model_config = ConfigDict(strict=True)

    type: Literal["json", "json_object", "json_schema", "regex"]
    value: dict[str, Any] | str

    def constraint(self) -> Constraint:
        """Raises GrammarError."""
        value: Any = self.value
        if self.type == "regex":
            if not isinstance(value, str):
                raise GrammarError("a regex must be a string")
            return Constraint("regex", value)
        if self.type == "json_schema" and isinstance(value, dict):
            value = value.get("schema")
        return of_schema(value)


class Parameters(Signals):
    """`None` means that a field is left out."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    best_of: CountOrZero | None = Field(None, description="a whole number from 1 up")
    temperature: float | None = Field(None, description="a number above 0")
    repetition_penalty: float | None = Field(None, description="a number above 0")
    frequency_penalty: float | None = Field(None, description="a number from -2 to 2")
    top_k: int | None = Field(None, description="a whole number from 1 up")
    top_p: float | None = Field(None, description="a number above 0 and below 1")
    typical_p: float | None = Field(None, description="a number above 0 and below 1")
    do_sample: bool | None = Field(None, description="true or false")
    max_new_tokens: int | None = Field(None, description="a whole number from 1 up")
    return_full_text: bool | None = Field(None, description="true or false")
    stop: Texts | None = Field(None, description="an array of strings")
    truncate: int | None = Field(None, description="a whole number from 1 up")
    details: bool | None = Field(None, description="true or false")
    decoder_input_details: bool | None = Field(None, description="true or false")
    seed: Seed | None = Field(None, description=SEED)
    top_n_tokens: CountOrZero | None = Field(None, description="a whole number from 0 up")
    watermark: Any = Field(None, description="not supported")
    grammar: Grammar | None = Field(
        None,
        description="an object with type 'json' or 'json_schema' and value: a JSON schema, or type "
        "'regex' and value: a string",
    )
    adapter_id: Any = Field(None, description="not supported")

    @property
    def is_sampling(self) -> bool:
        """Whether some field turns sampling on; `best_of` needs it."""
        asked = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return bool(self.do_sample) or any(value is not None for value in asked)


class _Request(BaseModel):
    model_config = ConfigDict(strict=True)

    parameters: Parameters | None = Field(None, description="an object")

    @property
    def asked(self) -> Parameters:
        """A request without parameters samples, one with parameters has to say so."""
        return self.parameters or Parameters.model_validate({"do_sample": True})


class GenerateRequest(_Request):
    inputs: str = Field(description="a string")


class CompatRequest(_Request):
    """`POST /`: also several texts, and the choice of a stream."""

    inputs: str | Texts = Field(description="a string or an array of strings")
    stream: bool | None = Field(None, description="true or false")


class InvalidError(ApiError):
    """422 with TGI's message."""

    def __init__(self, message: str) -> None:
        super().__init__(422, message)


def parse(data: dict[str, Any], schema: type[Schema]) -> Schema:
    """Raises InvalidError. Unknown fields are ignored, as TGI does, and logged once."""
    inner = data.get("parameters")
    unknown = (data.keys() - schema.model_fields.keys()) | (
        inner.keys() - Parameters.model_fields.keys() if isinstance(inner, dict) else set()
    )
    for name in heapq.nsmallest(MOST_UNKNOWN, unknown):
        _log_unknown(name[:60])
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        inner = [one for one in errors if one["loc"][0] == "parameters" and len(one["loc"]) > 1]
        message = explain([one for one in errors if one not in inner], schema)
        for one in inner:
            one["loc"] = one["loc"][1:]
        raise InvalidError("; ".join(filter(None, (message, explain(inner, Parameters))))) from None


@functools.lru_cache(UNKNOWN_LOGGED)
def _log_unknown(name: str) -> None:
    log.info("TGI's API has no field %s; it is ignored", show(name))


def validate(asked: Parameters, config: Config, *, streaming: bool) -> None:
    """Checks everything that does not need the prompt's tokens. A number may have thousands of
    digits. Raises InvalidError."""
    for name in NOT_OFFERED:
        _require(getattr(asked, name) in (None, False), f"`{name}` is not supported by this server")
    best_of = 1 if asked.best_of is None else asked.best_of
    if streaming:
        unknown = "is not supported when streaming tokens"
        _require(best_of == 1, f"`best_of` != 1 {unknown}")
        _require(not asked.decoder_input_details, f"`decoder_input_details` == true {unknown}")
    elsewhere = "is not allowed for this endpoint"
    _require(config.max_best_of > 1 or best_of == 1, f"`best_of` != 1 {elsewhere}")
    if not 0 < best_of <= (most := config.max_best_of):
        raise InvalidError(f"`best_of` must be > 0 and <= {most}. Given: {show(best_of)}")
    if best_of > 1:
        _require(asked.is_sampling, "you must use sampling when `best_of` is > 1")
        _require(asked.seed is None, "`seed` must not be set when `best_of` > 1")
    _check_numbers(asked)
    stops = asked.stop or []
    if len(stops) > (most := config.max_stop_sequences):
        raise InvalidError(f"`stop` supports up to {most} stop sequences. Given: {len(stops)}")
    _require("" not in stops, "`stop` must not contain an empty string")
    if (longest := max(map(len, stops), default=0)) > MOST_STOP_CHARACTERS:
        message = f"each of `stop` may have up to {MOST_STOP_CHARACTERS} characters"
        raise InvalidError(f"{message}. Given: {longest}")
    top_n, most = asked.top_n_tokens or 0, config.max_top_n_tokens
    _require(most > 0 or top_n == 0, f"`top_n_tokens` != 0 {elsewhere}")
    if top_n > most:
        raise InvalidError(f"`top_n_tokens` must be >= 0 and <= {most}. Given: {show(top_n)}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidError(message)


def _check_numbers(asked: Parameters) -> None:
    positive = {
        "temperature": (COOLEST, HOTTEST),
        "repetition_penalty": (LEAST_RATE, MOST_RATE),
        "top_k": (1, MOST),
        "max_new_tokens": (1, MOST),
    }
    for name, (least, most) in positive.items():
        if (value := getattr(asked, name)) is not None:
            _require(value > 0, f"`{name}` must be strictly positive")
            _require(least <= value <= most, f"`{name}` must be >= {least} and <= {most:.0f}")
    for name in ("top_p", "typical_p"):
        if (value := getattr(asked, name)) is not None:
            _require(0 < value < 1, f"`{name}` must be > 0.0 and < 1.0")
    message = f"`frequency_penalty` must be >= -{MOST_PENALTY} and <= {MOST_PENALTY}"
    _require(-MOST_PENALTY <= (asked.frequency_penalty or 0) <= MOST_PENALTY, message)


def fit(
    asked: Parameters, tokens: int, config: Config, context: int, *, read: bool = True
) -> tuple[int, int]:
    """(prompt tokens to keep, tokens to generate) for a prompt of `tokens`, or of so many at least
    while it is not `read`. Raises InvalidError."""
    given = "Given: " if read else "Given: at least "
    most_total = min(config.max_total_tokens or context, context)
    most_input = min(config.max_input_tokens or most_total - 1, most_total - 1)
    if asked.truncate is not None:
        if not 0 < asked.truncate <= most_input:
            message = f"`truncate` must be strictly positive and less than {most_input}"
            raise InvalidError(f"{message}. Given: {show(asked.truncate)}")
        tokens = min(tokens, asked.truncate)
    further = asked.max_new_tokens
    if further is not None and tokens + further > most_total:
        raise InvalidError(
            f"`inputs` tokens + `max_new_tokens` must be <= {most_total}. {given}{tokens} `inputs` "
            f"tokens and {show(further)} `max_new_tokens`"
        )
    if tokens > most_input:
        raise InvalidError(f"`inputs` must have less than {most_input} tokens. {given}{tokens}")
    return tokens, most_total - tokens if further is None else further


def sampling_of(asked: Parameters, logprobs: int | None, constraint: Constraint | None) -> Sampling:
    """With a fresh seed where none is given. Parameters that would change nothing (a temperature
    of 1) do not turn sampling on, as in TGI."""
    temperature = 1.0 if asked.temperature is None else asked.temperature
    drawn = asked.do_sample or temperature != 1 or asked.top_k or asked.top_p or asked.typical_p
    return replace(
        NEUTRAL.sampling(asked.model_dump(include=NAMES, exclude_none=True), asked.seed),
        temperature=temperature if drawn else 0.0,
        typical_p=1.0 if asked.typical_p is None else max(asked.typical_p, LEAST_MASS),
        frequency_penalty=asked.frequency_penalty or 0.0,
        logprobs=logprobs,
        prompt_logprobs=0 if asked.decoder_input_details else None,
        constraint=constraint,
    )
