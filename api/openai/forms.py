"""The responses of OpenAI's API: whole, and in chunks. They are dictionaries, which are made and
encoded faster than models are. A key that is left out where it does not apply is `NotRequired`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Literal, NotRequired, cast

from typing_extensions import TypedDict

from api.openai.choices import Finish, Segment, Token, joined
from api.openai.fields.schemas import ChatRequest, GenerationRequest
from text.tokenizer import Tokenizer
from text.tools.forms import CallForm
from text.tools.parsing import CallPiece

FINGERPRINT = "fp_effective_batching"  # of every server: typed clients require one
LEAST_LOGPROB = -9999.0  # JSON has no infinity


class PromptTokensDetails(TypedDict):
    cached_tokens: int  # keys and values of which were there; 0 without a prefix cache


class CompletionTokensDetails(TypedDict):
    """With `prediction`: drafts, of whatever origin, that were accepted and rejected."""

    reasoning_tokens: NotRequired[int]
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class Usage(TypedDict):
    prompt_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens: int
    completion_tokens_details: NotRequired[CompletionTokensDetails]
    total_tokens: int


class Head(TypedDict):
    """The first fields of every response."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Literal["default", "flex"]]


class ChunkHead(Head):
    usage: NotRequired[Usage | None]


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """`finish_reason` is null in all but the last chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Head):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(ChunkHead):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class Alternative(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(TypedDict):
    content: list[ChatToken]
    refusal: None


class CalledFunction(TypedDict):
    name: str
    arguments: str  # a JSON object, unless the answer was too long


class ChatCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None  # null beside calls without a text
    reasoning_content: NotRequired[str]  # before it
    refusal: None
    tool_calls: NotRequired[list[ChatCall]]
    function_call: NotRequired[CalledFunction]  # in its place, where `functions` were offered


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletion(Head):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """The first of a call has all fields; the others continue its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta] | None]
    function_call: NotRequired[FunctionDelta]


class ChatPart(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(ChunkHead):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatPart]


class _Form:
    """The response format of one of the two endpoints. `name`: of the model. `tells_usage`: a
    stream ends with it."""

    prefix: str  # of a response's id

    def __init__(self, name: str, wanted: GenerationRequest, tokenizer: Tokenizer) -> None:
        self._head: Head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
            "system_fingerprint": FINGERPRINT,
        }
        if wanted.service_tier is not None:
            self._head["service_tier"] = "flex" if wanted.service_tier == "flex" else "default"
        self._chunk_head = cast(ChunkHead, self._head)
        options = wanted.stream_options
        self.tells_usage = options is not None and bool(options.include_usage)
        if self.tells_usage:
            self._chunk_head = {**self._head, "usage": None}
        self._alternatives = wanted.alternatives
        self._tokenizer = tokenizer


class CompletionForm(_Form):
    prefix = "cmpl"

    def chunks(self, segment: Segment) -> Iterator[CompletionChunk]:
        tokens = [*segment.tokens, *segment.ending]
        choice: CompletionChoice = {
            "index": segment.index,
            "text": segment.text,
            "logprobs": None if self._alternatives is None else self._logprobs(tokens),
            "finish_reason": segment.finish,
        }
        yield {**self._chunk_head, "object": "text_completion", "choices": [choice]}

    def last(self, usage: Usage) -> CompletionChunk:
        return {**self._chunk_head, "object": "text_completion", "choices": [], "usage": usage}

    def whole(self, parts: Sequence[Segment], choices: int, usage: Usage) -> Completion:
        chunks = [chunk for segment in joined(parts, choices) for chunk in self.chunks(segment)]
        return {
            **self._head,
            "object": "text_completion",
            "choices": [choice for chunk in chunks for choice in chunk["choices"]],
            "usage": usage,
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


class ChatForm(_Form):
    """Where `functions` were offered, as before there were tools, an answer has one call."""

    prefix = "chatcmpl"

    def __init__(
        self, name: str, wanted: ChatRequest, tokenizer: Tokenizer, call_form: CallForm
    ) -> None:
        super().__init__(name, wanted, tokenizer)
        self.new_call_id = call_form.new_id
        self._of_functions = wanted.of_functions
        self._each: ChatDelta = {}
        if wanted.model == "tgi":  # TGI's own client wants these in each delta, as TGI sends them
            self._each = {"role": "assistant", "tool_calls": None}

    def opening(self, choices: int) -> Iterator[ChatChunk]:
        """Before any token."""
        for index in range(choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def chunks(self, segment: Segment) -> Iterator[ChatChunk]:
        if segment.reasoning:
            yield self._chunk(segment.index, {"reasoning_content": segment.reasoning})
        if segment.text or segment.tokens:
            logprobs = self._logprobs(segment.tokens)
            yield self._chunk(segment.index, {"content": segment.text}, logprobs)
        for piece in segment.calls:
            yield self._chunk(segment.index, self._delta(piece))
        if segment.finish is not None:
            yield self._chunk(segment.index, {}, finish=self._finish(segment.finish))

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

    def scored(self, tokens: Sequence[Token]) -> list[ChatToken]:
        return [
            {
                **self._named(token.id, token.logprobs.logprob),
                "top_logprobs": [self._named(*other) for other in token.logprobs.top],
            }
            for token in tokens
            if token.logprobs is not None  # as of all that were generated
        ]

    def _message(self, segment: Segment) -> ChatMessage:
        message: ChatMessage = {"role": "assistant", "content": segment.text, "refusal": None}
        calls: dict[int, ChatCall] = {}
        for piece in segment.calls:
            if piece.name is not None:
                function: CalledFunction = {"name": piece.name, "arguments": ""}
                identity = self.new_call_id()
                calls[piece.index] = {"id": identity, "type": "function", "function": function}
            calls[piece.index]["function"]["arguments"] += piece.arguments
        if calls:
            message["content"] = segment.text or None
        if calls and self._of_functions:
            message["function_call"] = next(iter(calls.values()))["function"]
        elif calls:
            message["tool_calls"] = list(calls.values())
        if segment.reasoning:
            message["reasoning_content"] = segment.reasoning
        return message

    def _delta(self, piece: CallPiece) -> ChatDelta:
        call: CallDelta = {"index": piece.index, "function": {"arguments": piece.arguments}}
        if piece.name is not None:
            call = {
                "index": piece.index,
                "id": self.new_call_id(),
                "type": "function",
                "function": {"name": piece.name, "arguments": piece.arguments},
            }
        return {"function_call": call["function"]} if self._of_functions else {"tool_calls": [call]}

    def _finish(self, finish: Finish | None) -> Finish | None:
        return "function_call" if self._of_functions and finish == "tool_calls" else finish

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        logprobs: ChatLogprobs | None = None,
        finish: Finish | None = None,
    ) -> ChatChunk:
        choice: ChatPart = {
            "index": index,
            "delta": {**self._each, **delta},
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        return {**self._chunk_head, "object": "chat.completion.chunk", "choices": [choice]}

    def _logprobs(self, tokens: Sequence[Token]) -> ChatLogprobs | None:
        if self._alternatives is None:
            return None
        return {"content": self.scored(tokens), "refusal": None}

    def _named(self, token: int, logprob: float) -> Alternative:
        held = self._tokenizer.token_bytes(token)
        return {
            "token": held.decode(errors="replace"),
            "logprob": finite(logprob),
            "bytes": list(held),
        }


Form = CompletionForm | ChatForm


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
