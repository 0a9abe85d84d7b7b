"""Responses of `/v1/completions`: whole, and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from api.openai.answers import chunk_head_of, finite, head_of, joined
from api.openai.choices import Segment, Token
from api.openai.fields.schemas import CompletionRequest
from api.openai.shapes import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    Usage,
)
from text.tokenizer import Tokenizer


class CompletionForm:
    is_completion = True
    prompt_field = "prompt"

    def __init__(self, model: str, wanted: CompletionRequest, tokenizer: Tokenizer) -> None:
        self._head = head_of("cmpl", model, wanted)
        self._alternatives = wanted.alternatives
        self._chunk_head = chunk_head_of(self._head, wanted)
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
                None if token.logprobs is None else finite(token.logprobs.logprob)
                for token in tokens
            ],
            "top_logprobs": top,
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, token: Token) -> dict[str, float] | None:
        """The likeliest, and the token itself."""
        if token.logprobs is None:
            return None
        likely = {self._name(other): finite(value) for other, value in token.logprobs.top}
        return {**likely, self._name(token.id): finite(token.logprobs.logprob)}

    def _name(self, token: int) -> str:
        """A token's text; of one that is no whole characters the bytes, as OpenAI writes them."""
        held = self._tokenizer.token_bytes(token)
        try:
            return held.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)
