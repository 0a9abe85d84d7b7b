"""Responses in OpenAI's formats: whole, and in chunks; usage, logprobs and errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

from api.http.errors import ApiError
from api.openai.choices import Choice, Finish, Segment, Token
from api.openai.schemas import ChatRequest, CompletionRequest, GenerationRequest
from api.openai.shapes import (
    Alternative,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatToken,
    ChunkHead,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    Head,
    OpenAIError,
    Usage,
)
from text.tokenizer import Tokenizer

Chunk = CompletionChunk | ChatChunk
Answer = Completion | ChatCompletion

LEAST_LOGPROB = -9999.0  # JSON has no infinity


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


def _head(prefix: str, model: str, wanted: GenerationRequest) -> Head:
    head: Head = {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": model,
    }
    if wanted.service_tier is not None:
        head["service_tier"] = "flex" if wanted.service_tier == "flex" else "default"
    return head


def _chunk_head(head: Head, wanted: GenerationRequest) -> ChunkHead:
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
        )
        for index, mine in enumerate(own)
    ]


class CompletionForm:
    is_completion = True
    prompt_field = "prompt"

    def __init__(self, model: str, wanted: CompletionRequest, tokenizer: Tokenizer) -> None:
        self._head = _head("cmpl", model, wanted)
        self._alternatives = wanted.alternatives
        self._chunk_head = _chunk_head(self._head, wanted)
        self._tokenizer = tokenizer

    def opening(self, choices: int) -> Iterator[CompletionChunk]:
        yield from ()

    def chunks(self, segment: Segment) -> Iterator[CompletionChunk]:
        yield {
            **self._chunk_head,
            "object": "text_completion",
            "choices": [self._choice(segment)],
        }

    def last(self, usage: Usage) -> CompletionChunk:
        return {**self._chunk_head, "object": "text_completion", "choices": [], "usage": usage}

    def whole(self, parts: Sequence[Segment], choices: int, usage: Usage) -> Completion:
        return {
            **self._head,
            "object": "text_completion",
            "choices": [self._choice(segment) for segment in joined(parts, choices)],
            "usage": usage,
        }

    def _choice(self, segment: Segment) -> CompletionChoice:
        tokens = [*segment.tokens, *segment.ending]
        return {
            "index": segment.index,
            "text": segment.text,
            "logprobs": None if self._alternatives is None else self._logprobs(tokens),
            "finish_reason": segment.finish,
        }

    def _logprobs(self, tokens: Sequence[Token]) -> CompletionLogprobs:
        top = [self._top(token) for token in tokens] if self._alternatives else None
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [
                None if token.logprobs is None else _finite(token.logprobs.logprob)
                for token in tokens
            ],
            "top_logprobs": top,
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, token: Token) -> dict[str, float] | None:
        """The likeliest, and the token itself."""
        if token.logprobs is None:
            return None
        likely = {self._name(other): _finite(value) for other, value in token.logprobs.top}
        return {**likely, self._name(token.id): _finite(token.logprobs.logprob)}

    def _name(self, token: int) -> str:
        """A token's text; of one that is no whole characters the bytes, as OpenAI writes them."""
        held = self._tokenizer.token_bytes(token)
        try:
            return held.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)


class ChatForm:
    is_completion = False
    prompt_field = "messages"

    def __init__(self, model: str, wanted: ChatRequest, tokenizer: Tokenizer) -> None:
        self._head = _head("chatcmpl", model, wanted)
        self._alternatives = wanted.alternatives
        self._chunk_head = _chunk_head(self._head, wanted)
        self._tokenizer = tokenizer

    def opening(self, choices: int) -> Iterator[ChatChunk]:
        for index in range(choices):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunks(self, segment: Segment) -> Iterator[ChatChunk]:
        if segment.text or segment.tokens:
            logprobs = self._logprobs(segment.tokens)
            yield self._chunk(segment.index, {"content": segment.text}, logprobs, None)
        if segment.finish is not None:
            yield self._chunk(segment.index, {}, None, segment.finish)

    def last(self, usage: Usage) -> ChatChunk:
        return {
            **self._chunk_head,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage,
        }

    def whole(self, parts: Sequence[Segment], choices: int, usage: Usage) -> ChatCompletion:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                {
                    "index": segment.index,
                    "message": {"role": "assistant", "content": segment.text, "refusal": None},
                    "logprobs": self._logprobs(segment.tokens),
                    "finish_reason": segment.finish,
                }
                for segment in joined(parts, choices)
            ],
            "usage": usage,
        }

    def _chunk(
        self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None, finish: Finish | None
    ) -> ChatChunk:
        return {
            **self._chunk_head,
            "object": "chat.completion.chunk",
            "choices": [
                {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            ],
        }

    def _logprobs(self, tokens: Sequence[Token]) -> ChatLogprobs | None:
        if self._alternatives is None:
            return None
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: Token) -> ChatToken:
        assert token.logprobs is not None  # it was generated
        return {
            **self._named(token.id, token.logprobs.logprob),
            "top_logprobs": [self._named(*other) for other in token.logprobs.top],
        }

    def _named(self, token: int, logprob: float) -> Alternative:
        held = self._tokenizer.token_bytes(token)
        return {
            "token": held.decode(errors="replace"),
            "logprob": _finite(logprob),
            "bytes": list(held),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
