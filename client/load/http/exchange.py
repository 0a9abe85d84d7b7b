"""One request and its response, as the client sees them: the times of its tokens and of its end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from client.load.http.dialects import AnswerError, Event, counted
from client.load.http.target import Target
from client.load.records import Outcome
from client.workloads.workload_file import Request

_LINE_BYTES = 2**22  # a longer line is not an event


@dataclass(slots=True)
class Progress:
    """The progress of a run, for a live view."""

    planned: int
    sent: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    ttfts: list[float] | None = None

    @property
    def in_flight(self) -> int:
        return self.sent - self.done


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


@dataclass(slots=True)
class Exchange:
    """A request in progress."""

    run: Context
    index: int
    request: Request
    sent_s: float
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    stated: list[tuple[float, int]] = field(default_factory=list)
    first_s: float | None = None
    end_s: float | None = None
    total: int | None = None
    prompt_tokens: int | None = None
    queue_s: float | None = None
    server_first_s: float | None = None
    unplaced: int = 0

    async def talk(self, session: aiohttp.ClientSession) -> None:
        """Retries once if a kept connection was closed just as it was reused, which is not the
        server's fault."""
        try:
            await self._talk(session)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            if not self.run.target.keep_alive or self.end_s is not None:
                raise
            await self._talk(session)

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        run = self.run
        async with session.post(
            run.url,
            data=run.bodies[self.index],
            headers={
                "Content-Type": "application/json",
                "X-Request-Id": f"{run.name}/{self.index}",
            },
        ) as response:
            if response.status != 200:
                raise AnswerError(f"HTTP {response.status}: {await _beginning(response)}")
            if run.target.stream:
                await self._read_stream(response)
            else:
                answer = run.target.dialect.answer(json.loads(await response.read()))
                self._take(answer, run.now())
        if self.total is None:
            raise AnswerError("the stream ended without a count of its tokens")
        if run.target.stream and not run.target.native:
            self.deliveries, self.unplaced = counted(self.deliveries, self.stated, self.total)
            self.first_s = self.deliveries[0][0] if self.deliveries else None

    async def _read_stream(self, response: aiohttp.ClientResponse) -> None:
        dialect, now = self.run.target.dialect, self.run.now
        if response.content_type != "text/event-stream":
            raise AnswerError(
                f"a stream of events was expected, not {response.content_type}: "
                f"{await _beginning(response)}"
            )
        rest = b""
        ended = False
        while chunk := await response.content.readany():
            at = now()
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
                event = dialect.event(json.loads(data))
                ended = ended or event.last
                self._take(event, at)
        if not ended:
            raise AnswerError("the connection ended in the middle of the stream")

    def _take(self, event: Event, at: float) -> None:
        progress = self.run.progress
        if event.tokens:
            if self.first_s is None:
                self.first_s = at
                if progress.ttfts is not None:
                    intended = self.request.at_s
                    progress.ttfts.append(at - (self.sent_s if intended is None else intended))
            self.deliveries.append((at, event.tokens))
            progress.tokens += event.tokens
        if event.total is not None:
            if not self.deliveries:
                progress.tokens += event.total
            self.total = event.total
            self.stated.append((at, event.total))
        self.prompt_tokens = event.prompt_tokens or self.prompt_tokens
        self.queue_s = event.queue_s if event.queue_s is not None else self.queue_s
        self.server_first_s = event.first_s if event.first_s is not None else self.server_first_s
        self.end_s = at

    def outcome(self, failure: str | None, unfinished: bool) -> Outcome:
        streamed = self.run.target.stream
        first_s, source = self.first_s, "stream"
        if not streamed:
            source = "server" if self.server_first_s is not None else "none"
            first_s = None if self.server_first_s is None else self.sent_s + self.server_first_s
        return Outcome(
            index=self.index,
            service=self.request.service,
            deadline_s=self.request.deadline_s,
            requested_tokens=self.request.output_tokens,
            intended_s=self.request.at_s,
            sent_s=self.sent_s,
            first_s=first_s,
            end_s=self.end_s if failure is None else None,
            left_s=self.run.now(),
            deliveries=tuple(self.deliveries),
            unplaced=self.unplaced,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.total,
            queue_s=self.queue_s,
            first_from=source,
            failure=failure,
            unfinished=unfinished,
        )
