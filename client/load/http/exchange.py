"""One request and its response, as the client sees them: the times of its tokens and of its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from ctypes import Structure, c_int64
from dataclasses import dataclass, field

import aiohttp

from client.load.http.dialects import AnswerError, counted, message
from client.load.http.target import Target
from client.load.records import Outcome
from client.workloads.workload_file import Request

_LINE_BYTES = 2**22  # a longer line is not an event


class Progress(Structure):
    """The progress of a run, for a live view; a structure of C, which processes can share."""

    sent: int
    done: int
    failed: int
    tokens: int
    _fields_ = (("sent", c_int64), ("done", c_int64), ("failed", c_int64), ("tokens", c_int64))

    @property
    def in_flight(self) -> int:
        return self.sent - self.done

    @classmethod
    def together(cls, parts: Iterable[Progress]) -> Progress:
        counts = ((part.sent, part.done, part.failed, part.tokens) for part in parts)
        return cls(*map(sum, zip(*counts, strict=True)))


@dataclass(slots=True)
class Context:
    """What all exchanges of a run share. ``bodies``, by index, are made before the run begins, at
    ``start`` by the monotonic clock."""

    target: Target
    bodies: Mapping[int, bytes]
    name: str
    progress: Progress
    start: float = 0.0
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = self.target.url + self.target.dialect.path(stream=self.target.stream)

    def now(self) -> float:
        """Whole microseconds, so that the raw data are exactly what was measured."""
        return round(time.monotonic() - self.start, 6)


async def _beginning(response: aiohttp.ClientResponse) -> str:
    text = (await response.content.read(300)).decode(errors="replace")
    return " ".join(text.split())


class Exchange:
    """A request in progress, and what is known of it. ``stated``: the server's counts of tokens and
    when they came."""

    def __init__(self, run: Context, index: int, request: Request, sent_s: float) -> None:
        self.run = run
        self.deliveries: list[tuple[float, int]] = []
        self.stated: list[tuple[float, int]] = []
        self.outcome = Outcome(
            index=index,
            service=request.service,
            deadline_s=request.deadline_s,
            requested_tokens=request.output_tokens,
            intended_s=request.at_s,
            sent_s=sent_s,
            first_from="stream" if run.target.stream else "none",
        )

    async def talk(self, session: aiohttp.ClientSession) -> None:
        """Retries once if a kept connection was closed just as it was reused, which is not the
        server's fault."""
        try:
            await self._talk(session)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            if not self.run.target.keep_alive or self.outcome.end_s is not None:
                raise
            await self._talk(session)

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        run, found = self.run, self.outcome
        async with session.post(
            run.url,
            data=run.bodies[found.index],
            headers={
                "Content-Type": "application/json",
                "X-Request-Id": f"{run.name}/{found.index}",
            },
        ) as response:
            if response.status != 200:
                raise AnswerError(f"HTTP {response.status}: {await _beginning(response)}")
            if run.target.stream:
                await self._read_stream(response)
            else:
                self._take(await response.read(), run.now())
        if found.output_tokens is None:
            raise AnswerError("the response ended without a count of its tokens")
        if run.target.stream and not run.target.native:
            self.deliveries, found.unplaced = counted(
                self.deliveries, self.stated, found.output_tokens
            )
            found.first_s = self.deliveries[0][0] if self.deliveries else None

    async def _read_stream(self, response: aiohttp.ClientResponse) -> None:
        if response.content_type != "text/event-stream":
            raise AnswerError(
                f"a stream of events was expected, not {response.content_type}: "
                f"{await _beginning(response)}"
            )
        rest = b""
        ended = False
        while chunk := await response.content.readany():
            at = self.run.now()
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES:
                raise AnswerError(f"a line of the stream is longer than {_LINE_BYTES} bytes")
            for line in lines:
                # Other fields of SSE (event, id, comments) carry nothing here.
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    ended = True
                    continue
                ended = self._take(data, at) or ended
        if not ended:
            raise AnswerError("the connection ended in the middle of the stream")

    def _take(self, text: bytes, at: float) -> bool:
        """An event of the stream, or the whole response. Whether it is the last."""
        found, progress = self.outcome, self.run.progress
        data = json.loads(text)
        if "error" in data:
            raise AnswerError(message(data["error"]))
        event = self.run.target.dialect.event(data)
        if event.tokens and self.run.target.stream:
            if found.first_s is None:
                found.first_s = at
            self.deliveries.append((at, event.tokens))
            progress.tokens += event.tokens
        if event.total is not None:
            if not self.deliveries:
                progress.tokens += event.total
            found.output_tokens = event.total
            self.stated.append((at, event.total))
        if event.prompt_tokens:
            found.prompt_tokens = event.prompt_tokens
        if event.queue_s is not None:
            found.queue_s = event.queue_s
        if event.first_s is not None and not self.run.target.stream:
            found.first_s, found.first_from = found.sent_s + event.first_s, "server"
        found.end_s = at
        return event.last

    def ended(self, failure: str | None, unfinished: bool) -> Outcome:
        """Its record, whatever ended it."""
        found = self.outcome
        found.left_s = self.run.now()
        found.deliveries = tuple(self.deliveries)
        found.failure, found.unfinished = failure, unfinished
        if failure is not None:
            found.end_s = None
        return found
