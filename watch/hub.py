"""Sends new records to all viewers, twenty times a second.

While there are viewers, one thread reads the history and encodes each frame once for all of them. A
viewer's thread takes frames from a short queue and sends them; a viewer that falls behind is
disconnected. The engine only adds to the history, with or without viewers.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from engine.lifecycle import History
from seams import Clock, IterationRecord
from watch.frames import Frame, Hello, make_frame

EVERY_S = 0.05
STATS_EVERY = 20  # frames
QUIET_FRAMES = 20  # without an event, after which one is sent all the same: clocks stay in step
MOST_BEHIND = 60  # frames that a viewer may be late: three seconds
BACKLOG_EVENTS = 2000  # sent to a new viewer at once


class FullError(Exception):
    """There are as many viewers as allowed."""


class Viewer:
    """Iterated by the thread that serves it; ends when the viewer is dropped or the hub closes."""

    def __init__(self, client: socket.socket | None) -> None:
        self._client = client
        self._frames: queue.Queue[bytes | None] = queue.Queue(MOST_BEHIND)

    def send(self, event: bytes) -> bool:
        """False if the viewer is too slow."""
        try:
            self._frames.put_nowait(event)
        except queue.Full:
            return False
        return True

    def drop(self) -> None:
        """Shuts the socket, in which the thread may wait for a client that does not read."""
        with contextlib.suppress(queue.Full):
            self._frames.put_nowait(None)
        if self._client is not None and self._frames.full():
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[bytes]:
        while (event := self._frames.get()) is not None:
            yield event


class Hub:
    """`history`, `hello` and `stats` are called while there are viewers. `closing`: whether the
    server has finished all requests and ends."""

    def __init__(
        self,
        history: History,
        hello: Callable[[], Hello],
        stats: Callable[[], Mapping[str, Any]],
        clock: Clock,
        closing: Callable[[], bool],
        most_viewers: int,
    ) -> None:
        self._history = history
        self._hello = hello
        self._stats = stats
        self._clock = clock
        self._closing = closing
        self.most_viewers = most_viewers
        self._lock = threading.Lock()
        self._viewers: list[Viewer] = []
        self._running = False
        self._next = 0  # event of the history
        self._iterations = 0  # read so far
        self._quiet = 0
        self._ticks = 0

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def join(self, client: socket.socket | None) -> Viewer:
        """Raises FullError."""
        viewer = Viewer(client)
        with self._lock:
            if len(self._viewers) >= self.most_viewers:
                raise FullError
            self._tick()  # the viewer continues where the others are
            viewer.send(as_event("hello", self._hello()))
            viewer.send(
                as_event("frame", {**self._backlog(BACKLOG_EVENTS), "stats": self._stats()})
            )
            self._viewers.append(viewer)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="watch", daemon=True).start()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._viewers.remove(viewer)

    def backlog(self, most_events: int) -> Frame:
        """The newest events, as one frame."""
        with self._lock:
            self._tick()
            return self._backlog(most_events)

    def _backlog(self, most_events: int) -> Frame:
        new = self._history.since(max(0, self._next - most_events))
        events = new.events[: len(new.events) - (new.next - self._next)]
        known = sum(isinstance(event, IterationRecord) for event in events)
        return make_frame(events, self._iterations - known, self._clock())

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(EVERY_S)
            with self._lock:
                self._tick()
                if self._closing():
                    for viewer in self._viewers:
                        viewer.drop()
                    self._viewers.clear()
                if not self._viewers:
                    self._running = False
                    return

    def _tick(self) -> None:
        new = self._history.since(self._next)
        self._next = new.next
        first = self._iterations
        self._iterations += sum(isinstance(event, IterationRecord) for event in new.events)
        if not self._viewers:
            return
        self._ticks += 1
        self._quiet = 0 if new.events else self._quiet + 1
        with_stats = self._ticks % STATS_EVERY == 0
        if self._quiet % QUIET_FRAMES and not with_stats:
            return
        frame = make_frame(new.events, first, self._clock())
        if with_stats:
            frame["stats"] = self._stats()
        event = as_event("frame", frame)
        for viewer in [viewer for viewer in self._viewers if not viewer.send(event)]:
            self._viewers.remove(viewer)
            viewer.drop()


def as_event(name: str, data: Mapping[str, Any] | Hello | Frame) -> bytes:
    """A server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
