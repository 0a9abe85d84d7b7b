"""Sends a workload to a target: open loop on an absolute schedule, or a closed loop.

A late response never drops or delays a send; the client's own lateness is recorded as dispatch lag.
Computes no metric: it returns records.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from client.load.http.dialects import AnswerError
from client.load.http.exchange import Context, Exchange, Progress
from client.load.http.target import Target
from client.load.records import Outcome, Run
from client.workloads.workload_file import Workload

_WATCHED_S = 0.02
_KEPT_S = 1.0  # an idle connection; servers close theirs after two seconds and more
_READ_BUFFER_BYTES = 2**22  # aiohttp's default of 64 KiB throttles many fast streams
SILENCE_S = 600.0


def play(
    workload: Workload,
    target: Target,
    *,
    drain_s: float | None = None,
    silence_s: float = SILENCE_S,
    begin: Callable[[], float] = time.monotonic,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    name: str = "run",
    part: tuple[int, int] = (0, 1),
) -> Run:
    """Send it, or one part: of ``(number, of)`` the requests ``number``, ``number + of`` and so on.
    Requests that still run ``drain_s`` after the sending window are cut and counted as unfinished;
    a closed loop has no such window and is cut so long after its start.

    None waits for every response; a connection without a byte for ``silence_s`` has failed.
    ``begin`` returns, once all is prepared, the time on the machine's clock at which the run
    begins. The X-Request-Id of a request is ``name`` and its index, as in `Run.name`. The run ends
    early, and keeps what was measured, once it is ``stopped``."""
    number, of = part
    bodies = {
        index: json.dumps(target.dialect.body(request, stream=target.stream)).encode()
        for index, request in enumerate(workload.requests)
        if index % of == number
    }
    context = Context(target, bodies, name, progress or Progress())
    users = workload.users
    if users is not None:
        users = users // of + (number < users % of)
    return asyncio.run(_Player(workload, context, users, drain_s, silence_s, stopped).run(begin))


@dataclass(slots=True)
class _Player:
    workload: Workload
    context: Context
    users: int | None
    drain_s: float | None
    silence_s: float
    stopped: Callable[[], bool]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    interrupted: str | None = None
    followers: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, request in enumerate(self.workload.requests):
            if request.after is not None:
                self.followers.setdefault(request.after, []).append(index)

    async def run(self, begin: Callable[[], float]) -> Run:
        # By default a connection per request, as independent users have.
        kept: dict[str, Any] = {"force_close": True}
        if self.context.target.keep_alive:
            kept = {"keepalive_timeout": _KEPT_S}
        connector = aiohttp.TCPConnector(limit=0, **kept)
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(30.0, self.silence_s), sock_read=self.silence_s
            ),
            read_bufsize=_READ_BUFFER_BYTES,
            headers=self.context.target.headers,
        ) as session:
            start = self.context.start = begin()
            await asyncio.sleep(start - time.monotonic())
            watcher = asyncio.create_task(self._watch(asyncio.current_task()))
            try:
                await self._send_all(session)
            except asyncio.CancelledError:
                self.interrupted = "interrupted from the keyboard"
            wall_s = self.context.now()
            watcher.cancel()
        return Run(
            target=self.context.target.name,
            workload=self.workload,
            outcomes=tuple(self.outcomes[i] for i in sorted(self.outcomes)),
            wall_s=wall_s,
            counted=self.context.target.dialect.counted,
            streamed=self.context.target.stream,
            interrupted=self.interrupted,
            began_unix_s=start + _unix_offset_s(),
            name=self.context.name,
        )

    async def _send_all(self, session: aiohttp.ClientSession) -> None:
        tasks: set[asyncio.Task[None]] = set()
        todo = iter(self.context.bodies)
        try:
            for _ in range(self.users or 0):
                tasks.add(asyncio.create_task(self._user(session, todo)))
            for index in todo if self.users is None else ():
                at_s = self.workload.requests[index].at_s
                if at_s is None:  # it follows another one
                    continue
                wait = at_s - self.context.now()
                if wait > 0:
                    await asyncio.sleep(wait)
                elif index % 64 == 0:
                    await asyncio.sleep(0)  # many sends at once must not starve running requests
                tasks.add(asyncio.create_task(self._chain(session, index)))
            left = None
            if self.drain_s is not None:
                left = max(0.0, self.workload.duration_s + self.drain_s - self.context.now())
            if tasks:
                await asyncio.wait(tasks, timeout=left)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _chain(self, session: aiohttp.ClientSession, index: int) -> None:
        """The request, and those that follow it; after a failure none does."""
        await self._send(session, index)
        for follower in self.followers.get(index, ()):
            if self.outcomes[index].ok:
                await asyncio.sleep(self.workload.requests[follower].think_s)
                await self._chain(session, follower)

    async def _user(self, session: aiohttp.ClientSession, todo: Iterator[int]) -> None:
        """One of a closed loop, who takes the next of those that are left."""
        for index in todo:
            if think_s := self.workload.requests[index].think_s:
                await asyncio.sleep(think_s)
            await self._send(session, index)

    async def _send(self, session: aiohttp.ClientSession, index: int) -> None:
        request = self.workload.requests[index]
        exchange = Exchange(self.context, index, request, self.context.now())
        self.context.progress.sent += 1
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
        self.outcomes[index] = exchange.ended(failure, unfinished)
        self.context.progress.done += 1
        self.context.progress.failed += failure is not None and not unfinished
        if unfinished:  # a user of a closed loop would continue with the next request
            raise asyncio.CancelledError

    async def _watch(self, sending: asyncio.Task[Any] | None) -> None:
        while not self.stopped():
            await asyncio.sleep(_WATCHED_S)
        if sending is not None:
            sending.cancel()


def _unix_offset_s() -> float:
    """Wall clock minus monotonic clock. Time passes between the two readings, so the largest of
    several differences is the most accurate."""
    return max(time.time() - time.monotonic() for _ in range(8))
