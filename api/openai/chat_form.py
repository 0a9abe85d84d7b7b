"""Responses of `/v1/chat/completions`: whole, and in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from api.openai.answers import chunk_head_of, finite, head_of, joined
from api.openai.choices import Finish, Segment, Token
from api.openai.fields.schemas import ChatRequest
from api.openai.shapes import (
    Alternative,
    CallDelta,
    CalledFunction,
    ChatCall,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatToken,
    Usage,
)
from text.tokenizer import Tokenizer
from text.tools.forms import CallForm
from text.tools.parsing import CallPiece


class ChatForm:
    is_completion = False
    prompt_field = "messages"

    def __init__(
        self, model: str, wanted: ChatRequest, tokenizer: Tokenizer, call_form: CallForm
    ) -> None:
        self._head = head_of("chatcmpl", model, wanted)
        self._alternatives = wanted.alternatives
        self._chunk_head = chunk_head_of(self._head, wanted)
        self._tokenizer = tokenizer
        self._call_form = call_form
        self._each: ChatDelta = {}
        if wanted.model == "tgi":  # TGI's own client wants these in each delta, as TGI sends them
            self._each = {"role": "assistant", "tool_calls": None}

    def opening(self, choices: int) -> Iterator[ChatChunk]:
        for index in range(choices):
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunks(self, segment: Segment) -> Iterator[ChatChunk]:
        if segment.reasoning:
            delta: ChatDelta = {"reasoning_content": segment.reasoning}
            yield self._chunk(segment.index, delta, None, None)
        if segment.text or segment.tokens:
            logprobs = self._logprobs(segment.tokens)
            yield self._chunk(segment.index, {"content": segment.text}, logprobs, None)
        for piece in segment.calls:
            yield self._chunk(segment.index, self._delta(piece), None, None)
        if segment.finish is not None:
            yield self._chunk(segment.index, {}, None, self._finish(segment.finish))

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
                    "message": self._message(segment),
                    "logprobs": self._logprobs(segment.tokens),
                    "finish_reason": self._finish(segment.finish),
                }
                for segment in joined(parts, choices)
            ],
            "usage": usage,
        }

    def _message(self, segment: Segment) -> ChatMessage:
        message = self._said(segment)
        if segment.reasoning:
            message["reasoning_content"] = segment.reasoning
        return message

    def _said(self, segment: Segment) -> ChatMessage:
        if not segment.calls:
            return {"role": "assistant", "content": segment.text, "refusal": None}
        calls: dict[int, ChatCall] = {}
        for piece in segment.calls:
            if piece.name is not None:
                function: CalledFunction = {"name": piece.name, "arguments": ""}
                identity = self._call_form.new_id()
                calls[piece.index] = {"id": identity, "type": "function", "function": function}
            calls[piece.index]["function"]["arguments"] += piece.arguments
        return {
            "role": "assistant",
            "content": segment.text or None,
            "refusal": None,
            "tool_calls": list(calls.values()),
        }

    def _delta(self, piece: CallPiece) -> ChatDelta:
        call: CallDelta = {"index": piece.index, "function": {"arguments": piece.arguments}}
        if piece.name is not None:
            call = {
                "index": piece.index,
                "id": self._call_form.new_id(),
                "type": "function",
                "function": {"name": piece.name, "arguments": piece.arguments},
            }
        return {"tool_calls": [call]}

    def _finish(self, finish: Finish | None) -> Finish | None:
        return finish

    def _chunk(
        self, index: int, delta: ChatDelta, logprobs: ChatLogprobs | None, finish: Finish | None
    ) -> ChatChunk:
        return {
            **self._chunk_head,
            "object": "chat.completion.chunk",
            "choices": [
                {
                    "index": index,
                    "delta": {**self._each, **delta},
                    "logprobs": logprobs,
                    "finish_reason": finish,
                }
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
            "logprob": finite(logprob),
            "bytes": list(held),
        }


class FunctionForm(ChatForm):
    """Where `functions` were offered, as before there were tools: an answer has one call."""

    def _message(self, segment: Segment) -> ChatMessage:
        message = super()._message(segment)
        if calls := message.pop("tool_calls", None):
            message["function_call"] = calls[0]["function"]
        return message

    def _delta(self, piece: CallPiece) -> ChatDelta:
        calls = super()._delta(piece)["tool_calls"]
        assert calls
        return {"function_call": calls[0]["function"]}

    def _finish(self, finish: Finish | None) -> Finish | None:
        return "function_call" if finish == "tool_calls" else finish
