"""Sends a workload to a target: open loop on an absolute schedule, or a closed loop.

A late response never drops or delays a send; the client's own lateness is recorded as dispatch lag.
Computes no metric: it returns records.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from client.load.dialects import AnswerError, Event, counted
from client.load.machine import first_in_line
from client.load.records import Outcome, Run
from client.load.target import Target, authorization
from client.workloads.workload_file import Request, Workload

_SAMPLE_S = 0.02
_KEPT_S = 1.0  # an idle connection; servers close theirs after two seconds and more
_READ_BUFFER_BYTES = 2**22  # aiohttp's default of 64 KiB throttles many fast streams
_LINE_BYTES = 2**22  # a longer line is not an event
SILENCE_S = 600.0


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


Watcher = Callable[[Progress], None]


def play(
    workload: Workload,
    target: Target,
    *,
    drain_s: float | None = None,
    silence_s: float = SILENCE_S,
    watch: Watcher | None = None,
    begin: Callable[[], float] = time.monotonic,
    name: str = "run",
    index_of: Callable[[int], int] = int,
) -> Run:
    """Send it. Requests that still run ``drain_s`` after the sending window are cut and counted as
    unfinished; a closed loop has no such window and is cut so long after its start.

    None waits for every response; a connection without a byte for ``silence_s`` has failed.
    ``begin`` returns, once all is prepared, the time on the machine's clock at which the run
    begins. The X-Request-Id of a request is ``name`` and ``index_of`` of its index, as in
    `Run.name`. KeyboardInterrupt ends the run early and keeps what was measured."""
    with _no_collector_pauses(), first_in_line():
        player = _Player(workload, target, drain_s, silence_s, watch, name, index_of)
        return asyncio.run(player.run(begin))


@contextlib.contextmanager
def _no_collector_pauses() -> Iterator[None]:
    """Switches off the collector, which would stop the client for tens of milliseconds; a run makes
    no garbage cycles."""
    _collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _collect() -> None:
    """Collect everything. An interrupt in the middle is raised at the end.

    Within a finalizer a KeyboardInterrupt would be printed and ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        gc.collect()
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        gc.collect()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in came:
        signal.raise_signal(one)


class _Player:
    def __init__(
        self,
        workload: Workload,
        target: Target,
        drain_s: float | None,
        silence_s: float,
        watch: Watcher | None,
        name: str,
        index_of: Callable[[int], int],
    ) -> None:
        self.workload, self.target = workload, target
        self.name, self.index_of = name, index_of
        self.drain_s, self.silence_s, self.watch = drain_s, silence_s, watch
        self.progress = Progress(len(workload.requests), ttfts=[])
        self.samples: list[tuple[float, int]] = []
        self.outcomes: dict[int, Outcome] = {}
        self.bodies = [
            json.dumps(target.dialect.body(r, stream=target.stream)).encode()
            for r in workload.requests
        ]
        self.url = target.url + target.dialect.path(stream=target.stream)
        self.start = 0.0
        self.interrupted: str | None = None

    def now(self) -> float:
        """Whole microseconds, so that the raw data are exactly what was measured."""
        return round(time.monotonic() - self.start, 6)

    async def run(self, begin: Callable[[], float]) -> Run:
        # By default a connection per request, as independent users have.
        kept: dict[str, Any] = {"force_close": True}
        if self.target.keep_alive:
            kept = {"keepalive_timeout": _KEPT_S}
        connector = aiohttp.TCPConnector(limit=0, **kept)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(30.0, self.silence_s), sock_read=self.silence_s
            ),
            read_bufsize=_READ_BUFFER_BYTES,
            headers=authorization(),
        ) as session:
            self.start = begin()
            await asyncio.sleep(self.start - time.monotonic())
            sampler = asyncio.create_task(self._sample())
            try:
                if self.workload.users is None:
                    await self._open_loop(session)
                else:
                    await self._closed_loop(session, self.workload.users)
            except asyncio.CancelledError:
                self.interrupted = "interrupted from the keyboard"
            wall_s = self.now()
            sampler.cancel()
        return Run(
            target=self.target.name,
            workload=self.workload,
            outcomes=tuple(self.outcomes[i] for i in sorted(self.outcomes)),
            in_flight=tuple(self.samples),
            wall_s=wall_s,
            counted=self.target.dialect.counted,
            streamed=self.target.stream,
            interrupted=self.interrupted,
            began_unix_s=self.start + _unix_offset_s(),
            name=self.name,
        )

    async def _open_loop(self, session: aiohttp.ClientSession) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            for index, request in enumerate(self.workload.requests):
                assert request.at_s is not None  # a file without users has times
                wait = request.at_s - self.now()
                if wait > 0:
                    await asyncio.sleep(wait)
                elif index % 64 == 0:
                    await asyncio.sleep(0)  # many sends at once must not starve running requests
                tasks.add(asyncio.create_task(self._send(session, index, request)))
            left = None
            if self.drain_s is not None:
                left = max(0.0, self.workload.duration_s + self.drain_s - self.now())
            if tasks:
                await asyncio.wait(tasks, timeout=left)
        finally:
            await _cut(tasks)

    async def _closed_loop(self, session: aiohttp.ClientSession, users: int) -> None:
        todo = iter(enumerate(self.workload.requests))

        async def user() -> None:
            for index, request in todo:
                if request.think_s:
                    await asyncio.sleep(request.think_s)
                await self._send(session, index, request)

        tasks = {asyncio.create_task(user()) for _ in range(users)}
        try:
            await asyncio.wait(tasks, timeout=self.drain_s)
        finally:
            await _cut(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _send(self, session: aiohttp.ClientSession, index: int, request: Request) -> None:
        exchange = _Exchange(self, index, request, sent_s=self.now())
        self.progress.sent += 1
        failure: str | None = None
        unfinished = False
        try:
            await exchange.talk(session)
        except asyncio.CancelledError:
            failure, unfinished = "unfinished when the run was cut", True
        except TimeoutError:
            failure = f"timed out: no data for {self.silence_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            failure = f"{type(error).__name__}: {error}"
        except AnswerError as error:
            failure = str(error)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            failure = f"not a response of this API: {type(error).__name__}: {error}"
        self.outcomes[index] = exchange.outcome(failure, unfinished)
        self.progress.done += 1
        self.progress.failed += failure is not None and not unfinished
        if unfinished:  # a user of a closed loop would continue with the next request
            raise asyncio.CancelledError

    async def _sample(self) -> None:
        while True:
            self.progress.elapsed_s = self.now()
            self.samples.append((self.progress.elapsed_s, self.progress.in_flight))
            if self.watch is not None:
                self.watch(self.progress)
            await asyncio.sleep(_SAMPLE_S)


def _unix_offset_s() -> float:
    """Wall clock minus monotonic clock. Time passes between the two readings, so the largest of
    several differences is the most accurate."""
    return max(time.time() - time.monotonic() for _ in range(8))


async def _cut(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _beginning(response: aiohttp.ClientResponse) -> str:
    text = (await response.content.read(300)).decode(errors="replace")
    return " ".join(text.split())


class _Exchange:
    """A request in progress."""

    __slots__ = (
        "deliveries", "end_s", "first_s", "index", "player", "prompt_tokens", "queue_s",
        "request", "sent_s", "server_first_s", "stated", "total",
    )  # fmt: skip

    def __init__(self, player: _Player, index: int, request: Request, sent_s: float) -> None:
        self.player, self.index, self.request, self.sent_s = player, index, request, sent_s
        self.deliveries: list[tuple[float, int]] = []
        self.stated: list[tuple[float, int]] = []
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.total: int | None = None
        self.prompt_tokens: int | None = None
        self.queue_s: float | None = None
        self.server_first_s: float | None = None

    async def talk(self, session: aiohttp.ClientSession) -> None:
        """Retries once if a kept connection was closed just as it was reused, which is not the
        server's fault."""
        try:
            await self._talk(session)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            if not self.player.target.keep_alive or self.end_s is not None:
                raise
            await self._talk(session)

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        player = self.player
        async with session.post(
            player.url,
            data=player.bodies[self.index],
            headers={
                "Content-Type": "application/json",
                "X-Request-Id": f"{player.name}/{player.index_of(self.index)}",
            },
        ) as response:
            if response.status != 200:
                raise AnswerError(f"HTTP {response.status}: {await _beginning(response)}")
            if player.target.stream:
                await self._read_stream(response)
            else:
                answer = player.target.dialect.answer(json.loads(await response.read()))
                self._take(answer, player.now())
        if self.total is None:
            raise AnswerError("the stream ended without a count of its tokens")
        if player.target.stream and not player.target.native and self.deliveries:
            self.deliveries = counted(self.deliveries, self.stated, self.total)
            self.first_s = self.deliveries[0][0]

    async def _read_stream(self, response: aiohttp.ClientResponse) -> None:
        dialect, now = self.player.target.dialect, self.player.now
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
        progress = self.player.progress
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
        streamed = self.player.target.stream
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
            left_s=self.player.now(),
            deliveries=tuple(self.deliveries),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.total,
            queue_s=self.queue_s,
            first_from=source,
            failure=failure,
            unfinished=unfinished,
        )
