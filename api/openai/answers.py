"""Answers in OpenAI's formats: whole, and in chunks; usage, logprobs and errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from api.http.errors import ApiError
from api.openai.choices import Choice, Segment, Token
from api.openai.schemas import ChatRequest, CompletionRequest, GenerationRequest
from text import Tokenizer

Json = dict[str, Any]

LEAST_LOGPROB = -9999.0  # JSON has no infinity


def error_shape(error: ApiError) -> Mapping[str, Any]:
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
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


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> Json:
    """A prompt counts once, however many choices it has. An end token counts, though it is no
    part of the text, and so does a stop string."""
    generated = sum(choice.generated for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }


class Form(Protocol):
    """How one of the two endpoints answers."""

    is_completion: bool
    prompt_field: str

    def opening(self, choices: int) -> Iterator[Json]: ...

    def chunks(self, segment: Segment) -> Iterator[Json]: ...

    def last(self, usage: Json) -> Json: ...

    def whole(self, parts: Sequence[Segment], choices: int, usage: Json) -> Json: ...


class _Envelope:
    """What surrounds the choices of every answer and every chunk of it."""

    def __init__(self, prefix: str, kind: str, chunk: str, model: str, wanted: GenerationRequest):
        self._id = f"{prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._kind, self._chunk, self._model = kind, chunk, model
        self._tier = wanted.service_tier
        self._include_usage = wanted.include_usage

    def _enclose(self, kind: str, choices: list[Json]) -> Json:
        body = {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._tier is not None:
            body["service_tier"] = "flex" if self._tier == "flex" else "default"
        return body

    def answer(self, choices: list[Json], usage: Json) -> Json:
        return {**self._enclose(self._kind, choices), "usage": usage}

    def chunk(self, choice: Json) -> Json:
        body = self._enclose(self._chunk, [choice])
        return {**body, "usage": None} if self._include_usage else body

    def last(self, usage: Json) -> Json:
        return {**self._enclose(self._chunk, []), "usage": usage}


def joined(parts: Sequence[Segment], choices: int) -> list[Segment]:
    """One segment a choice."""
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
        self._envelope = _Envelope("cmpl", "text_completion", "text_completion", model, wanted)
        self._alternatives = wanted.alternatives
        self._tokenizer = tokenizer

    def opening(self, choices: int) -> Iterator[Json]:
        yield from ()

    def chunks(self, segment: Segment) -> Iterator[Json]:
        yield self._envelope.chunk(self._choice(segment))

    def last(self, usage: Json) -> Json:
        return self._envelope.last(usage)

    def whole(self, parts: Sequence[Segment], choices: int, usage: Json) -> Json:
        return self._envelope.answer([self._choice(s) for s in joined(parts, choices)], usage)

    def _choice(self, segment: Segment) -> Json:
        tokens = [*segment.tokens, *segment.ending]
        return {
            "index": segment.index,
            "text": segment.text,
            "logprobs": None if self._alternatives is None else self._logprobs(tokens),
            "finish_reason": segment.finish,
        }

    def _logprobs(self, tokens: Sequence[Token]) -> Json:
        top = [self._top(token) for token in tokens] if self._alternatives else None
        return {
            "tokens": [self._name(token.id) for token in tokens],
            "token_logprobs": [
                token.logprobs and _finite(token.logprobs.logprob) for token in tokens
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
        self._envelope = _Envelope(
            "chatcmpl", "chat.completion", "chat.completion.chunk", model, wanted
        )
        self._alternatives = wanted.alternatives
        self._tokenizer = tokenizer

    def opening(self, choices: int) -> Iterator[Json]:
        for index in range(choices):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunks(self, segment: Segment) -> Iterator[Json]:
        if segment.text or segment.tokens:
            logprobs = self._logprobs(segment.tokens)
            yield self._chunk(segment.index, {"content": segment.text}, logprobs, None)
        if segment.finish is not None:
            yield self._chunk(segment.index, {}, None, segment.finish)

    def last(self, usage: Json) -> Json:
        return self._envelope.last(usage)

    def whole(self, parts: Sequence[Segment], choices: int, usage: Json) -> Json:
        return self._envelope.answer(
            [
                {
                    "index": segment.index,
                    "message": {"role": "assistant", "content": segment.text, "refusal": None},
                    "logprobs": self._logprobs(segment.tokens),
                    "finish_reason": segment.finish,
                }
                for segment in joined(parts, choices)
            ],
            usage,
        )

    def _chunk(self, index: int, delta: Json, logprobs: Json | None, finish: str | None) -> Json:
        return self._envelope.chunk(
            {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        )

    def _logprobs(self, tokens: Sequence[Token]) -> Json | None:
        if self._alternatives is None:
            return None
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, token: Token) -> Json:
        assert token.logprobs is not None  # it was generated
        return {
            **self._named(token.id, token.logprobs.logprob),
            "top_logprobs": [self._named(*other) for other in token.logprobs.top],
        }

    def _named(self, token: int, logprob: float) -> Json:
        held = self._tokenizer.token_bytes(token)
        return {
            "token": held.decode(errors="replace"),
            "logprob": _finite(logprob),
            "bytes": list(held),
        }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
