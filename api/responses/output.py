"""A valid call of `/v1/responses`, and its output as events, made of the segments of a chat.
Streamed or not, a response is made here: without a stream its events are dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import MISSING, Field

from api.follow import follow
from api.openai.choices import Segment
from api.openai.forms import ChatForm, ChatToken, Usage
from api.openai.generation import Generation
from api.openapi import Answer
from api.responses.items import (
    FunctionCall,
    InputItem,
    ItemStatus,
    Json,
    Logprobs,
    OutputItem,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
    new_id,
)
from api.responses.schemas import ResponseRequest
from text.tools.parsing import CallPiece

# --- the response ---------------------------------------------------------------------------


class ResponseFault(Answer):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Incomplete(Answer):
    reason: Literal["max_output_tokens"]


class InputTokensDetails(Answer):
    cached_tokens: int
    cache_write_tokens: int = 0  # the cache keeps what was computed anyway


class OutputTokensDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class TextConfig(Answer):
    format: Json
    verbosity: str | MISSING = MISSING


# the defaults are what it has before anything is generated, for a request that says nothing
class GeneratedResponse(Answer):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool = False
    error: ResponseFault | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Json | None = None
    service_tier: Literal["default", "flex"] | MISSING = MISSING
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | Json = "auto"
    tools: list[Json]
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None


# --- events ---------------------------------------------------------------------------------


class _Event(Answer):
    sequence_number: int  # from 0, one more with each event


class _OfItem(_Event):
    item_id: str
    output_index: int


class _OfContent(_OfItem):
    content_index: int = 0


class ResponseEvent(_Event):
    """The response as it is when it begins and ends."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: GeneratedResponse


class ItemEvent(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(_OfContent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDelta(_OfContent):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str
    logprobs: Logprobs


class TextDone(_OfContent):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str
    logprobs: Logprobs


class ReasoningDelta(_OfContent):
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    delta: str


class ReasoningDone(_OfContent):
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    text: str


class ArgumentsDelta(_OfItem):
    type: Literal["response.function_call_arguments.delta"] = (
        "response.function_call_arguments.delta"
    )
    delta: str


class ArgumentsDone(_OfItem):
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


Event = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)


Made = TypeVar("Made", bound=Event)


class Output:
    """`response` is complete as far as it was generated, except for its newest item's text or
    arguments. `spaces`: the namespaces and names of functions that the model knows by others. An
    event shows the response and its items as they are until the next event."""

    def __init__(
        self, response: GeneratedResponse, form: ChatForm, spaces: Mapping[str, tuple[str, str]]
    ) -> None:
        self.response = response
        self._form = form
        self._spaces = spaces
        self._events = 0
        self._open: OutputItem | None = None  # the newest item, which is not complete
        self._pieces: list[str] = []  # of its text or arguments
        self._logprobs: list[ChatToken] = []  # of its text
        self._tokens: list[ChatToken] = []  # whose text is still to come, or is that of a call
        self._finish: str | None = None

    def opening(self) -> Iterator[Event]:
        yield self._of_response("response.created")
        in_background = self.response.status == "queued"
        yield self._of_response("response.queued" if in_background else "response.in_progress")

    def add(self, segment: Segment) -> Iterator[Event]:
        if self.response.status == "queued":
            self.response.status = "in_progress"
            yield self._of_response("response.in_progress")
        if segment.reasoning:
            yield from self._reasoning(segment.reasoning)
        self._tokens += self._form.scored(segment.tokens)
        if segment.text:
            yield from self._text(segment.text)
        for piece in segment.calls:
            yield from self._arguments(piece)
        self._finish = segment.finish or self._finish

    def end(self, usage: Usage) -> Iterator[Event]:
        """All events but the last."""
        status: Literal["completed", "incomplete"]
        status = "incomplete" if self._finish == "length" else "completed"
        in_message = isinstance(self._open, OutputMessage)
        if (self._tokens and in_message) or not (self.response.output or self._open):
            yield from self._text("")
        yield from self._close(status)
        self.response.status = status
        self.response.usage = _usage(usage)
        if status == "completed":
            self.response.completed_at = int(time.time())
        else:
            self.response.incomplete_details = Incomplete(reason="max_output_tokens")

    def fail(self, message: str) -> None:
        self._open = None
        self.response.status = "failed"
        self.response.usage = None
        self.response.error = ResponseFault(code="server_error", message=message)

    def cancel(self) -> None:
        self._open = None
        self.response.status = "cancelled"
        self.response.error = None

    def last(self) -> Event:
        """Of a response that has ended. OpenAI has none for one that was cancelled, which is not
        complete either."""
        status = self.response.status
        return self._of_response(
            "response.incomplete" if status == "cancelled" else f"response.{status}"
        )

    # --- items ------------------------------------------------------------------------------

    def _text(self, delta: str) -> Iterator[Event]:
        if not isinstance(self._open, OutputMessage):
            if self._open is not None:
                self._tokens = _newest(self._tokens, len(delta.encode()))
            message = OutputMessage(id=new_id("msg"), status="in_progress", content=[])
            yield from self._begin(message, OutputText(text=""))
        logprobs, self._tokens = self._tokens, []
        self._pieces.append(delta)
        self._logprobs += logprobs
        if delta or logprobs:
            yield self._event(TextDelta, delta=delta, logprobs=logprobs)

    def _reasoning(self, delta: str) -> Iterator[Event]:
        if self._open is None:
            reasoning = Reasoning(id=new_id("rs"), status="in_progress", content=[])
            yield from self._begin(reasoning, ReasoningText(text=""))
        self._tokens = []
        self._pieces.append(delta)
        yield self._event(ReasoningDelta, delta=delta)

    def _arguments(self, piece: CallPiece) -> Iterator[Event]:
        """The first piece of a call names its function."""
        if piece.name is not None:
            namespace, name = self._spaces.get(piece.name, (None, piece.name))
            call = FunctionCall(
                id=new_id("fc"),
                status="in_progress",
                call_id=self._form.new_call_id(),
                name=name,
                arguments="",
            )
            if namespace is not None:
                call.namespace = namespace
            yield from self._begin(call, None)
        if piece.arguments:
            self._pieces.append(piece.arguments)
            yield self._event(ArgumentsDelta, delta=piece.arguments)

    def _begin(self, item: OutputItem, part: OutputText | ReasoningText | None) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        yield self._event(ItemEvent, type="response.output_item.added", item=item)
        if part is not None:
            yield self._event(PartEvent, type="response.content_part.added", part=part)

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        """Completes the newest item."""
        item, whole = self._open, "".join(self._pieces)
        if item is None:
            return
        item.status = status
        if isinstance(item, FunctionCall):
            item.arguments = whole
            yield self._event(ArgumentsDone, name=item.name, arguments=whole)
        else:
            part: OutputText | ReasoningText
            if isinstance(item, OutputMessage):
                part = OutputText(text=whole, logprobs=self._logprobs)
                item.content = [part]
                yield self._event(TextDone, text=whole, logprobs=self._logprobs)
            else:
                part = ReasoningText(text=whole)
                item.content = [part]
                yield self._event(ReasoningDone, text=whole)
            yield self._event(PartEvent, type="response.content_part.done", part=part)
        yield self._event(ItemEvent, type="response.output_item.done", item=item)
        self.response.output.append(item)
        self._open, self._pieces, self._logprobs = None, [], []

    # --- events -----------------------------------------------------------------------------

    def _of_response(self, kind: str) -> Event:
        self._events += 1
        return ResponseEvent.model_validate(
            {"type": kind, "sequence_number": self._events - 1, "response": self.response}
        )

    def _event(self, kind: Callable[..., Made], **fields: Any) -> Made:
        """Of the newest item."""
        assert self._open is not None
        self._events += 1
        if kind is not ItemEvent:
            fields["item_id"] = self._open.id
        return kind(
            sequence_number=self._events - 1, output_index=len(self.response.output), **fields
        )


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """`own`: the input, without what `previous`, the number of a stored response, has before."""

    owner: str
    wanted: ResponseRequest
    generation: Generation
    output: Output
    own: list[InputItem]
    previous: int | None

    @property
    def id(self) -> str:
        return self.output.response.id

    @property
    def stores(self) -> bool:
        return self.output.response.store

    def read(self) -> Iterator[Event | None]:
        """All events but the first two and the last; None where there is none before the next
        update. Raises ApiError."""
        for segment in follow(self.generation.choices):
            if segment is None:
                yield None
            else:
                yield from self.output.add(segment)
        yield from self.output.end(self.generation.usage())


def _newest(tokens: list[ChatToken], size: int) -> list[ChatToken]:
    """Those of the last `size` bytes: what is before them closed a call."""
    first = len(tokens)
    while first and size > 0:
        first -= 1
        size -= len(tokens[first]["bytes"])
    return tokens[first:]


def _usage(usage: Usage) -> ResponseUsage:
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    reasoning_tokens = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return ResponseUsage(
        input_tokens=usage["prompt_tokens"],
        input_tokens_details=InputTokensDetails(cached_tokens=cached_tokens),
        output_tokens=usage["completion_tokens"],
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning_tokens),
        total_tokens=usage["total_tokens"],
    )
