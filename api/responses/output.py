"""A valid call of `/v1/responses`, and its output as events, made of the chunks of a chat. Streamed
or not, a response is made here: without a stream its events are dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from api.follow import follow
from api.openai.generation import Generation
from api.openai.shapes import CallDelta, ChatChunk, ChatToken, Usage
from api.responses.items import new_id, thought
from api.responses.schemas import ResponseRequest
from api.responses.shapes import (
    Event,
    GeneratedResponse,
    InputItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningText,
    ResponseEvent,
    ResponseEventType,
    ResponseUsage,
)


class Output:
    """`response` is complete as far as it was generated, except for its newest item's text or
    arguments. `spaces`: the namespaces and names of functions that the model knows by others."""

    def __init__(
        self, response: GeneratedResponse, spaces: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        self.response = response
        self._spaces = spaces or {}
        self._events = 0
        self._open: OutputItem | None = None  # the newest item, which is not complete
        self._pieces: list[str] = []  # of its text or arguments
        self._logprobs: list[ChatToken] = []  # of its text
        self._tokens: list[ChatToken] = []  # whose text is still to come, or is that of a call
        self._finish: str | None = None

    def opening(self) -> Iterator[Event]:
        yield self._response_event("response.created")
        in_background = self.response["status"] == "queued"
        yield self._response_event("response.queued" if in_background else "response.in_progress")

    def add(self, chunk: ChatChunk) -> Iterator[Event]:
        if self.response["status"] == "queued":
            self.response["status"] = "in_progress"
            yield self._response_event("response.in_progress")
        for choice in chunk["choices"]:
            delta, logprobs = choice["delta"], choice["logprobs"]
            self._tokens += [] if logprobs is None else logprobs["content"]
            if reasoning := delta.get("reasoning_content"):
                yield from self._reasoning(reasoning)
            if text := delta.get("content"):
                yield from self._text(text)
            for call in delta.get("tool_calls") or ():
                yield from self._arguments(call)
            self._finish = choice["finish_reason"] or self._finish

    def end(self, usage: Usage) -> list[Event]:
        """All events but the last."""
        status: Literal["completed", "incomplete"]
        status = "incomplete" if self._finish == "length" else "completed"
        events: list[Event] = []
        in_message = self._open is not None and self._open["type"] == "message"
        if (self._tokens and in_message) or not (self.response["output"] or self._open):
            events += self._text("")
        events += self._close(status)
        self._end(status, usage)
        return events

    def fail(self, message: str) -> None:
        self._open = None
        self._end("failed", None)
        self.response["error"] = {"code": "server_error", "message": message}

    def cancel(self) -> None:
        self._open = None
        self.response["status"] = "cancelled"
        self.response["error"] = None

    def last(self) -> Event:
        """Of a response that has ended. OpenAI has none for one that was cancelled, which is not
        complete either."""
        status = self.response["status"]
        if status == "cancelled":
            status = "incomplete"
        return self._response_event(cast(ResponseEventType, f"response.{status}"))

    def _end(
        self, status: Literal["completed", "incomplete", "failed"], usage: Usage | None
    ) -> None:
        response = self.response
        response["status"] = status
        response["usage"] = None if usage is None else _usage(usage)
        if status == "completed":
            response["completed_at"] = int(time.time())
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}

    # --- items ------------------------------------------------------------------------------

    def _text(self, delta: str) -> Iterator[Event]:
        item = self._open
        if item is None or item["type"] != "message":
            if item is not None:
                self._tokens = _newest(self._tokens, len(delta.encode()))
            yield from self._close("completed")
            item = self._open = _message("in_progress", [])
            yield self._item_event("response.output_item.added", item)
            yield self._part_event("response.content_part.added", item["id"], _part("", []))
        logprobs, self._tokens = self._tokens, []
        self._pieces.append(delta)
        self._logprobs += logprobs
        if delta or logprobs:
            yield {
                "type": "response.output_text.delta",
                "sequence_number": self._next(),
                "item_id": item["id"],
                "output_index": self._index,
                "content_index": 0,
                "delta": delta,
                "logprobs": logprobs,
            }

    def _reasoning(self, delta: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            item = self._open = {
                "id": new_id("rs"),
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
            }
            yield self._item_event("response.output_item.added", item)
            yield self._part_event("response.content_part.added", item["id"], thought(""))
        self._tokens = []
        self._pieces.append(delta)
        yield {
            "type": "response.reasoning_text.delta",
            "sequence_number": self._next(),
            "item_id": item["id"],
            "output_index": self._index,
            "content_index": 0,
            "delta": delta,
        }

    def _arguments(self, call: CallDelta) -> Iterator[Event]:
        """The first delta of a call names its function."""
        function, item = call["function"], self._open
        if "name" in function:
            yield from self._close("completed")
            item = self._open = {
                "id": new_id("fc"),
                "type": "function_call",
                "status": "in_progress",
                "call_id": call["id"],
                "name": function["name"],
                "arguments": "",
            }
            if (known := self._spaces.get(function["name"])) is not None:
                item["namespace"], item["name"] = known
            yield self._item_event("response.output_item.added", item)
        assert item is not None
        if delta := function["arguments"]:
            self._pieces.append(delta)
            yield {
                "type": "response.function_call_arguments.delta",
                "sequence_number": self._next(),
                "item_id": item["id"],
                "output_index": self._index,
                "delta": delta,
            }

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        """Completes the newest item."""
        item, whole = self._open, "".join(self._pieces)
        if item is None:
            return
        item["status"] = status
        if item["type"] == "message":
            part = _part(whole, self._logprobs)
            item["content"] = [part]
            yield {
                "type": "response.output_text.done",
                "sequence_number": self._next(),
                "item_id": item["id"],
                "output_index": self._index,
                "content_index": 0,
                "text": whole,
                "logprobs": self._logprobs,
            }
            yield self._part_event("response.content_part.done", item["id"], part)
        elif item["type"] == "reasoning":
            item["content"] = [thought(whole)]
            yield {
                "type": "response.reasoning_text.done",
                "sequence_number": self._next(),
                "item_id": item["id"],
                "output_index": self._index,
                "content_index": 0,
                "text": whole,
            }
            yield self._part_event("response.content_part.done", item["id"], thought(whole))
        else:
            item["arguments"] = whole
            yield {
                "type": "response.function_call_arguments.done",
                "sequence_number": self._next(),
                "item_id": item["id"],
                "output_index": self._index,
                "name": item["name"],
                "arguments": whole,
            }
        yield self._item_event("response.output_item.done", item)
        self.response["output"].append(item)
        self._open, self._pieces, self._logprobs = None, [], []

    # --- events -----------------------------------------------------------------------------

    @property
    def _index(self) -> int:
        """Of the newest item."""
        return len(self.response["output"])

    def _next(self) -> int:
        self._events += 1
        return self._events - 1

    def _response_event(self, kind: ResponseEventType) -> ResponseEvent:
        return {"type": kind, "sequence_number": self._next(), "response": self.response.copy()}

    def _item_event(
        self,
        kind: Literal["response.output_item.added", "response.output_item.done"],
        item: OutputItem,
    ) -> Event:
        return {
            "type": kind,
            "sequence_number": self._next(),
            "output_index": self._index,
            "item": item.copy(),
        }

    def _part_event(
        self,
        kind: Literal["response.content_part.added", "response.content_part.done"],
        item_id: str,
        part: OutputText | ReasoningText,
    ) -> Event:
        return {
            "type": kind,
            "sequence_number": self._next(),
            "item_id": item_id,
            "output_index": self._index,
            "content_index": 0,
            "part": part,
        }


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
        return self.output.response["id"]

    @property
    def stores(self) -> bool:
        return self.output.response["store"]

    def read(self) -> Iterator[Event | None]:
        """All events but the first two and the last; None where there is none before the next
        update. Raises ApiError."""
        for segment in follow(self.generation.choices):
            if segment is None:
                yield None
                continue
            for chunk in self.generation.form.chunks(segment):
                yield from self.output.add(cast(ChatChunk, chunk))
        yield from self.output.end(self.generation.usage())


def _message(status: ItemStatus, content: list[OutputText]) -> OutputMessage:
    return {
        "id": new_id("msg"),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _newest(tokens: list[ChatToken], size: int) -> list[ChatToken]:
    """Those of the last `size` bytes: what is before them closed a call."""
    first = len(tokens)
    while first and size > 0:
        first -= 1
        size -= len(tokens[first]["bytes"])
    return tokens[first:]


def _part(text: str, logprobs: list[ChatToken]) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _usage(usage: Usage) -> ResponseUsage:
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    reasoning_tokens = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }
