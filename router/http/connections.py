"""All clients' connections: how many there are, and how long they may wait for their clients.

Each needs a file of the process, and another one if an upstream answers it. So when there are too
many, the one that has waited longest for its client is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import takewhile

from router.http.server import ClientRequest, Connection
from router.rules.messages.errors import Response
from router.rules.messages.headers import Pairs

MOST_FILES = 65_536  # beyond it, the connections' memory is what runs out
OTHER_FILES = 100  # logs, probes, and connections that were accepted at once
LOOKS = 4  # at those that wait, within their patience


def most_connections() -> int:
    """Raises the limit of files of this process. The number of connections for which it is enough,
    with as many to upstreams."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if files != resource.RLIM_INFINITY and files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max(1, (wanted - OTHER_FILES) // 2)


@dataclass(slots=True, eq=False)
class Connections:
    """Makes them, for the event loop. Closes the one that has waited longest if there are more than
    `most`, and those whose clients send no request within `patience_s`. `answer` answers a request,
    or returns the answer; `own_headers` says what an answer's headers get beside their own."""

    answer: Callable[[ClientRequest], Awaitable[Response | None]]
    own_headers: Callable[[ClientRequest, Pairs], Pairs]
    most: int
    patience_s: float
    closing: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _all: set[Connection] = field(default_factory=set)
    # since when they wait for their clients, the longest first
    _waiting: dict[Connection, float] = field(default_factory=dict)
    _fewer: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle = field(init=False)

    def __post_init__(self) -> None:
        self._look()

    def __call__(self) -> Connection:
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        self._all.add(connection)
        self._waiting[connection] = self.loop.time()
        if len(self._all) > self.most:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.drop()

    def closed(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._waiting.pop(connection, None)
        if self._fewer is not None and not self._fewer.done():
            self._fewer.set_result(None)

    def set_waiting(self, connection: Connection, waiting: bool) -> None:
        """From now on, or no more."""
        self._waiting.pop(connection, None)
        if waiting and connection in self._all:
            self._waiting[connection] = self.loop.time()

    async def close(self, limit_s: float) -> None:
        """Closes those without a request, the others with their answers or at the limit."""
        self.closing = True
        self._timer.cancel()
        for connection in self._all:
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._all:
                    self._fewer = self.loop.create_future()
                    await self._fewer
        for connection in self._all:
            connection.drop()

    def _look(self) -> None:
        self._timer = self.loop.call_later(min(1.0, self.patience_s / LOOKS), self._look)
        late = self.loop.time() - self.patience_s
        waiting = takewhile(lambda entry: entry[1] <= late, self._waiting.items())
        for connection, _ in list(waiting):
            connection.close()  # if it has begun a request, that has a limit of its own
