"""The APIs of targets: how to write a request and read a response.

No I/O: bodies are returned as dictionaries, responses and stream events are passed in as decoded
JSON. Token counts are the server's own, never text encoded again; each dialect states what it
counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from client.workloads.workload_file import Request

Json = Mapping[str, Any]


IGNORE_EOS = "ignore_eos"  # no end before the requested length
EACH_USAGE = "continuous_usage_stats"  # a count of tokens with every event, which may hold several
EXTRAS = (IGNORE_EOS, EACH_USAGE)


class AnswerError(ValueError):
    """A response that reports a failure, or that does not follow the dialect."""


@dataclass(frozen=True, slots=True)
class Event:
    """The content of one stream event, or of a whole response.

    ``tokens`` in an event; ``total`` and ``prompt_tokens`` if the server states them;
    ``first_s``/``queue_s`` if it reports its own timing; ``last`` ends the stream.
    """

    tokens: int = 0
    total: int | None = None
    prompt_tokens: int | None = None
    first_s: float | None = None
    queue_s: float | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class Native:
    """This project's ``/inference``. ``counted`` is the basis of an API's token counts."""

    options: Json = field(default_factory=dict)
    counted: str = "token ids counted by the server, stated with every event"

    def path(self, *, stream: bool) -> str:
        return "/inference"

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": request.prompt,
            "num_tokens": request.output_tokens,
            "seed": request.seed,
            **request.signals,
            **self.options,
        }
        if stream:
            body["stream"] = True
        if request.service != "immediate":
            body["class"] = request.service
            if request.deadline_s is not None:
                body["deadline_s"] = request.deadline_s
        return body

    def event(self, data: Json) -> Event:
        if "num_tokens" not in data:
            return Event(tokens=_count(data, "tokens"))
        timing = data.get("timing", {})
        return Event(
            total=_count(data, "num_tokens"),
            prompt_tokens=_count_if_any(data, "prompt_tokens"),
            first_s=_seconds_if_any(timing, "ttft_s"),
            queue_s=_seconds_if_any(timing, "queue_s"),
            last=True,
        )


@dataclass(frozen=True, slots=True)
class OpenAI:
    """``/v1/completions``, or with ``chat`` ``/v1/chat/completions``; streams ask for usage.

    ``extras`` are the fields of `EXTRAS` that the server accepts, as vLLM and similar servers do.
    """

    options: Json
    chat: bool = False
    extras: tuple[str, ...] = ()
    counted: str = "the server's usage.completion_tokens"

    def path(self, *, stream: bool) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "max_tokens": request.output_tokens,
            "seed": request.seed,
            **request.signals,
        }
        if self.chat:
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        if IGNORE_EOS in self.extras:
            body[IGNORE_EOS] = True
        if stream:
            usage = {"include_usage": True}
            if EACH_USAGE in self.extras:
                usage[EACH_USAGE] = True
            body |= {"stream": True, "stream_options": usage}
        if request.service == "deferred":
            body["service_tier"] = "flex"
        return body | dict(self.options)

    def event(self, data: Json) -> Event:
        choices = data.get("choices") or []
        generated = any(_generated(c.get("delta" if self.chat else "text")) for c in choices)
        usage = data.get("usage") or {}
        return Event(
            tokens=int(generated),
            total=_count_if_any(usage, "completion_tokens"),
            prompt_tokens=_count_if_any(usage, "prompt_tokens"),
        )


@dataclass(frozen=True, slots=True)
class Tgi:
    """Text Generation Inference's ``/generate`` and ``/generate_stream``."""

    options: Json = field(default_factory=dict)
    counted: str = "the server's tokens, one stream event each"

    def path(self, *, stream: bool) -> str:
        return "/generate_stream" if stream else "/generate"

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        parameters = {
            "max_new_tokens": request.output_tokens,
            "seed": request.seed,
            "details": True,
            "decoder_input_details": not stream,
            **request.signals,
            **self.options,
        }
        return {"inputs": request.prompt, "parameters": parameters}

    def event(self, data: Json) -> Event:
        details = data.get("details") or {}
        return Event(
            tokens=int(bool(data.get("token"))),
            total=_count_if_any(details, "generated_tokens"),
            prompt_tokens=len(details.get("prefill") or ()),
            last=data.get("generated_text") is not None,
        )


Dialect = Native | OpenAI | Tgi


def counted(
    events: list[tuple[float, int]], stated: list[tuple[float, int]], total: int
) -> tuple[list[tuple[float, int]], int]:
    """When the tokens of a stream came, (time, tokens) each, and of how many this is not known.

    Counts in every event are used as they are. If a server counts only at the end, its tokens are
    spread evenly over the events, since one event may hold several. Then those without an event of
    their own, or the events without a token, are not accounted for.
    """
    n = len(events)
    if len(stated) >= max(n, 2):
        steps = pairwise([(0.0, 0), *stated])
        return [(at, now - before) for (_, before), (at, now) in steps if now > before], 0
    shares = (-(-(k + 1) * total // n) + (-k * total // n) for k in range(n))
    spread = [(at, tokens) for (at, _), tokens in zip(events, shares, strict=True) if tokens > 0]
    return spread, abs(total - n)


def _generated(part: Any) -> bool:
    """Whether a model generated any of it: content, reasoning by any name, a refusal, the name and
    arguments of a call."""
    if isinstance(part, Mapping):
        return any(_generated(part[key]) for key in part if key not in ("role", "id", "type"))
    if isinstance(part, list):
        return any(map(_generated, part))
    return isinstance(part, str) and part != ""


def _count(data: Json, key: str) -> int:
    value = data[key]
    if type(value) is not int or not 0 <= value < 2**53:
        raise AnswerError(f"{key} should be a count of tokens, not {value!r}")
    return value


def _count_if_any(data: Json, key: str) -> int | None:
    return None if data.get(key) is None else _count(data, key)


def _seconds_if_any(data: Json, key: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise AnswerError(f"{key} should be seconds, not {value!r}")
    return float(value)


def message(error: object) -> str:
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)
