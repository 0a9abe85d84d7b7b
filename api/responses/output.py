"""A valid call of `/v1/responses`, and its output as events, made of the segments of a chat.
Streamed or not, a response is made here: without a stream its events are dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from pydantic import MISSING, Field, create_model

from api.follow import follow
from api.openai.choices import Segment
from api.openai.forms import ChatForm, ChatToken, Usage
from api.openai.generation import Generation
from api.openapi import Answer
from api.responses.items import (
    FunctionCall,
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
from engine.inference import Inference
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


OF_ITEM: Json = {"item_id": str, "output_index": int}
OF_CONTENT: Json = {**OF_ITEM, "content_index": int}
# by its name in /openapi.json: the types of an event, and its fields besides `type` and number
FIELDS: dict[str, tuple[Sequence[str], Json]] = {
    "ResponseEvent": (  # as it is when it begins and ends
        ("created", "queued", "in_progress", "completed", "incomplete", "failed"),
        {"response": GeneratedResponse},
    ),
    "ItemEvent": (
        ("output_item.added", "output_item.done"),
        {"output_index": int, "item": OutputItem},
    ),
    "PartEvent": (
        ("content_part.added", "content_part.done"),
        {**OF_CONTENT, "part": OutputText | ReasoningText},
    ),
    "TextDelta": (["output_text.delta"], {**OF_CONTENT, "delta": str, "logprobs": Logprobs}),
    "TextDone": (["output_text.done"], {**OF_CONTENT, "text": str, "logprobs": Logprobs}),
    "ReasoningDelta": (["reasoning_text.delta"], {**OF_CONTENT, "delta": str}),
    "ReasoningDone": (["reasoning_text.done"], {**OF_CONTENT, "text": str}),
    "ArgumentsDelta": (["function_call_arguments.delta"], {**OF_ITEM, "delta": str}),
    "ArgumentsDone": (
        ["function_call_arguments.done"],
        {**OF_ITEM, "name": str, "arguments": str},
    ),
}


def _event_type(name: str) -> type[Answer]:
    kinds, fields = FIELDS[name]
    types = Literal[tuple(f"response.{kind}" for kind in kinds)]  # type: ignore[valid-type]
    required: Json = {"sequence_number": int, "type": types, **fields}
    declared: Json = {field: (of, ...) for field, of in required.items()}
    return create_model(name, __base__=Answer, **declared)


Event = Json  # one of EVENTS; its sequence_number is 0 in the first, one more with each
EVENTS: Any = Union[tuple(map(_event_type, FIELDS))]  # noqa: UP007


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
        yield self._of_response("created")
        in_background = self.response.status == "queued"
        yield self._of_response("queued" if in_background else "in_progress")

    def add(self, segment: Segment) -> Iterator[Event]:
        if self.response.status == "queued":
            self.response.status = "in_progress"
            yield self._of_response("in_progress")
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
        return self._of_response("incomplete" if status == "cancelled" else status)

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
            yield self._of_content("output_text.delta", delta=delta, logprobs=logprobs)

    def _reasoning(self, delta: str) -> Iterator[Event]:
        if self._open is None:
            reasoning = Reasoning(id=new_id("rs"), status="in_progress", content=[])
            yield from self._begin(reasoning, ReasoningText(text=""))
        self._tokens = []
        self._pieces.append(delta)
        yield self._of_content("reasoning_text.delta", delta=delta)

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
            yield self._of_item("function_call_arguments.delta", delta=piece.arguments)

    def _begin(self, item: OutputItem, part: OutputText | ReasoningText | None) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        yield self._event("output_item.added", output_index=len(self.response.output), item=item)
        if part is not None:
            yield self._of_content("content_part.added", part=part)

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        """Completes the newest item."""
        item, whole = self._open, "".join(self._pieces)
        if item is None:
            return
        item.status = status
        if isinstance(item, FunctionCall):
            item.arguments = whole
            done = {"name": item.name, "arguments": whole}
            yield self._of_item("function_call_arguments.done", **done)
        else:
            part: OutputText | ReasoningText
            if isinstance(item, OutputMessage):
                part = OutputText(text=whole, logprobs=self._logprobs)
                item.content = [part]
                yield self._of_content("output_text.done", text=whole, logprobs=self._logprobs)
            else:
                part = ReasoningText(text=whole)
                item.content = [part]
                yield self._of_content("reasoning_text.done", text=whole)
            yield self._of_content("content_part.done", part=part)
        yield self._event("output_item.done", output_index=len(self.response.output), item=item)
        self.response.output.append(item)
        self._open, self._pieces, self._logprobs = None, [], []

    # --- events -----------------------------------------------------------------------------

    def _of_response(self, kind: str) -> Event:
        return self._event(kind, response=self.response)

    def _of_content(self, kind: str, **fields: Any) -> Event:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> Event:
        """Of the newest item."""
        assert self._open is not None
        index = len(self.response.output)
        return self._event(kind, item_id=self._open.id, output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": self._events - 1, **fields}


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """`own`: the input, without what `previous`, the number of a stored response, has before."""

    owner: str
    wanted: ResponseRequest
    generation: Generation
    output: Output
    own: list[Json]
    previous: int | None

    @property
    def id(self) -> str:
        return self.output.response.id

    @property
    def inferences(self) -> Sequence[Inference]:
        return self.generation.inferences

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
