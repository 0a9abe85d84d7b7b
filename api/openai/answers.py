"""What the responses of OpenAI's API have in common: their heads, usage and errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol, cast

from api.http.errors import ApiError
from api.openai.choices import Choice, Segment
from api.openai.fields.shared import GenerationRequest
from api.openai.shapes import (
    ChatChunk,
    ChatCompletion,
    ChunkHead,
    Completion,
    CompletionChunk,
    Head,
    OpenAIError,
    Usage,
)
from api.openapi import documented

Chunk = CompletionChunk | ChatChunk
Answer = Completion | ChatCompletion

FINGERPRINT = "fp_effective_batching"  # of every server: typed clients require one
LEAST_LOGPROB = -9999.0  # JSON has no infinity

openai_errors = partial(documented, OpenAIError, 500)


def error_shape(error: ApiError) -> OpenAIError:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
    }
    fallback = "server_error" if error.status >= 500 else "invalid_request_error"
    codes = {429: "rate_limit_exceeded", 503: "overloaded"}
    return {
        "error": {
            "message": error.message,
            "type": kinds.get(error.status, fallback),
            "param": error.param,
            "code": error.code or codes.get(error.status),
        }
    }


def usage(prompt_tokens: int, cached_tokens: int, choices: Sequence[Choice]) -> Usage:
    """A prompt counts once, however many choices it has. An end token counts, though it is no
    part of the text, and so does a stop string."""
    generated = sum(choice.generated for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }


class Form(Protocol):
    """The response format of one of the two endpoints."""

    is_completion: bool
    prompt_field: str

    def opening(self, choices: int) -> Iterator[Chunk]: ...

    def chunks(self, segment: Segment) -> Iterator[Chunk]: ...

    def last(self, usage: Usage) -> Chunk: ...

    def whole(self, parts: Sequence[Segment], choices: int, usage: Usage) -> Answer: ...


def head_of(prefix: str, model: str, wanted: GenerationRequest) -> Head:
    head: Head = {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }
    if wanted.service_tier is not None:
        head["service_tier"] = "flex" if wanted.service_tier == "flex" else "default"
    return head


def chunk_head_of(head: Head, wanted: GenerationRequest) -> ChunkHead:
    return {**head, "usage": None} if wanted.include_usage else cast(ChunkHead, head)


def joined(parts: Sequence[Segment], choices: int) -> list[Segment]:
    """All segments of each choice joined."""
    own: list[list[Segment]] = [[] for _ in range(choices)]
    for part in parts:
        own[part.index].append(part)
    return [
        Segment(
            index,
            "".join(part.text for part in mine),
            [token for part in mine for token in part.tokens],
            mine[-1].finish,
            mine[-1].ending,
            [piece for part in mine for piece in part.calls],
            "".join(part.reasoning for part in mine),
        )
        for index, mine in enumerate(own)
    ]


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
