"""Clients' connections: how many there are, and how long they may wait for their clients.

Each needs a file of the process, and another one if an upstream answers it. So when there are too
many, the one that has waited longest for its client is closed. A client that falls behind in
reading must read at a least rate.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from router.rules.messages import errors
from web.requests import HEADER, request_id

MOST_FILES = 65_536  # beyond it, the connections' memory is what runs out
OTHER_FILES = 100  # logs, probes, and connections that were accepted at once
ACCEPTED_AT_ONCE = 32
MAX_HEADER_BYTES = 32 * 1024
BYTES_PER_S = 64 * 1024  # that a client must read


def most_connections() -> int:
    """Raises the limit of files of this process. The number of connections for which it is enough,
    with as many to upstreams."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    if files != resource.RLIM_INFINITY and files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        files = wanted
    if files == resource.RLIM_INFINITY:
        files = MOST_FILES
    return max(1, (min(files, MOST_FILES) - OTHER_FILES) // 2)


class Connections:
    """Makes them, for the event loop, and closes the one that has waited longest if there are more
    than `most`."""

    def __init__(self, server: web.Server, most: int, patience_s: float, **options: Any) -> None:
        self._server = server
        self._most = most
        self._patience_s = patience_s
        self._options = options
        self._open = 0
        self._waiting: dict[Connection, None] = {}  # for their clients, the longest first

    def __call__(self) -> Connection:
        return Connection(self, self._server, self._patience_s, **self._options)

    def opened(self, connection: Connection) -> None:
        self._open += 1
        self._waiting[connection] = None
        if self._open > self._most:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.drop()

    def closed(self, connection: Connection) -> None:
        self._open -= 1
        self._waiting.pop(connection, None)

    def set_waiting(self, connection: Connection, waiting: bool) -> None:
        """From now on, or no more."""
        self._waiting.pop(connection, None)
        if waiting and connection.connected:
            self._waiting[connection] = None


class Connection(web.RequestHandler):
    """A client's. A client that has fallen behind in reading has `patience_s` seconds, and a second
    more for each `BYTES_PER_S` bytes that it reads."""

    def __init__(
        self, connections: Connections, server: web.Server, patience_s: float, **options: Any
    ) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._connections = connections
        self._patience_s = self._left_s = patience_s
        self._changed_s = 0.0  # when it last fell behind or caught up
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # any byte that the socket does not accept counts as behind, also after the response's end
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._connections.closed(self)
        super().connection_lost(exc)

    def set_waiting(self, waiting: bool) -> None:
        """Whether the router waits for the client: for a request, or for more of its body."""
        self._connections.set_waiting(self, waiting)

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        transport, now = self.transport, self._loop.time()
        if transport is None:
            return
        self._left_s = min(self._patience_s, self._left_s + now - self._changed_s)
        self._left_s += transport.get_write_buffer_size() / BYTES_PER_S
        self._changed_s = now
        self._limit = self._loop.call_later(self._left_s, transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._limit is not None:
            self._limit.cancel()
            self._left_s -= self._loop.time() - self._changed_s
            self._changed_s = self._loop.time()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """An error object in the place of a page: for a head that cannot be read, or a defect."""
        if isinstance(exc, LineTooLong):
            text = f"The request's line or a header is longer than {MAX_HEADER_BYTES} bytes."
            problem = errors.invalid(text, 431)
        elif status < 500:
            problem = errors.invalid(f"The request is malformed: {message}", status)
        else:
            super().handle_error(request, status, exc, message)  # logs it
            problem = errors.Problem(status, "server_error", "internal_error", "The router failed.")
        response = errors.response(problem, request.path, openai=True)
        response.headers[HEADER] = request_id(request.headers.get(HEADER), prefix="req-")
        response.force_close()
        return response


def set_waiting(request: web.BaseRequest, waiting: bool) -> None:
    """Whether the router waits for this request's client."""
    cast(Connection, request.protocol).set_waiting(waiting)
