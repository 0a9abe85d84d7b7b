"""The processes of a model's shards on this machine. They are started together, and all are
restarted when one dies or hangs, since the state of the others is useless without it.

The engine detects the loss by itself and opens its sequences again (`remote/`). When this process
ends, its shards end.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from model_server.remote.ranks import Ranks
from model_server.wire import model_pb2 as wire
from model_server.wire.access import Access

log = logging.getLogger(__name__)

REFUSED = 1  # status of a shard that can never start: another attempt would fail the same way
BEAT_S, STARTING_BEAT_S = 1.0, 0.1
GRACE_S = 10.0  # for shards to end after SIGTERM
FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 10.0  # before a restart


@dataclass(frozen=True, slots=True)
class Shard:
    """How to start a shard, and its address."""

    command: Sequence[str]
    environment: dict[str, str]
    address: str


@dataclass(frozen=True, slots=True)
class _Event:
    """`life`: the start of the group that this belongs to; events of earlier ones are ignored."""

    life: int
    what: str
    final: bool = False


class Group:
    """`shards` makes the shards of the next life. Its argument is the KV memory of the previous
    shards in tokens, on which the engine relies. `patience_s`: time without a heartbeat after which
    a shard that was ready once counts as hanging."""

    def __init__(
        self, shards: Callable[[int | None], Sequence[Shard]], access: Access, patience_s: float
    ) -> None:
        self.shards = shards
        self.access = access
        self.patience_s = patience_s
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._life = 0
        self._ready_life = 0  # the newest in which a shard was ready
        self._kv_tokens: int | None = None  # None: no shard was ready yet
        self.processes: list[subprocess.Popen[bytes]] = []

    def stop(self) -> None:
        """Makes `run` end its shards and return. May be called in a signal handler."""
        self._events.put(None)

    def run(self) -> int:
        """Runs until it is stopped or a shard refuses to start; returns the exit status."""
        pause_s = FIRST_PAUSE_S
        while True:
            self._start()
            event = self._next()
            if event is None or event.final:
                self._end(signal.SIGTERM)
                return REFUSED if event else 0
            log.warning("%s; all shards are restarted", event.what)
            self._end(signal.SIGKILL)
            pause_s = pause_after(pause_s, was_ready=self._ready_life == self._life)
            threading.Event().wait(pause_s)

    def _next(self) -> _Event | None:
        """The event that ends the present life; None: the group was stopped."""
        while (event := self._events.get()) is not None and event.life != self._life:
            pass
        return event

    def _start(self) -> None:
        self._life += 1
        shards = self.shards(self._kv_tokens)
        self.processes = [
            subprocess.Popen(
                shard.command,
                env=shard.environment,
                stdin=subprocess.PIPE,  # closed when this process ends, in whatever way
                start_new_session=True,  # Ctrl-C is for this process, which ends them in order
            )
            for shard in shards
        ]
        for shard, process in zip(shards, self.processes, strict=True):
            for watch in (self._await_end, self._await_silence):
                threading.Thread(
                    target=watch, args=(self._life, shard, process), daemon=True
                ).start()

    def _end(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)
        deadline_s = time.monotonic() + GRACE_S
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _await_end(self, life: int, shard: Shard, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        what = f"the shard at {shard.address} ended with {how}"
        final = status == REFUSED and self._kv_tokens is None
        self._events.put(_Event(life, what, final))

    def _await_silence(self, life: int, shard: Shard, process: subprocess.Popen[bytes]) -> None:
        ranks, ready, tick = Ranks([shard.address], self.access), False, threading.Event()
        while process.poll() is None:
            try:
                (report,) = ranks.ask("Health", wire.HealthRequest(), self.patience_s)
                if report.ready and not ready:
                    ready, before = True, self._kv_tokens or report.kv_tokens
                    self._ready_life = life
                    self._kv_tokens = min(before, report.kv_tokens)
            except grpc.RpcError as error:
                if ready and process.poll() is None:
                    why = f"has no heartbeat ({error.code().name})"
                    self._events.put(_Event(life, f"the shard at {shard.address} {why}"))
                    break
            tick.wait(BEAT_S if ready else STARTING_BEAT_S)
        ranks.close()


def pause_after(pause_s: float, was_ready: bool) -> float:
    """Seconds before the next restart: twice the last pause after a start that failed. Shards that
    were ready are restarted at once, however often they die: requests wait for them."""
    return FIRST_PAUSE_S if was_ready else min(pause_s * 2, MOST_PAUSE_S)


def address_of(listen: str, rank: int) -> str:
    """The address of a rank. Rank 0 listens at `listen`, the others next to it."""
    if rank == 0:
        return listen
    if listen.startswith("unix:"):
        return f"{listen}-{rank}"
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) + rank}"


def cores_each(shards: int) -> str:
    """Threads of a shard if all shards share this machine's cores."""
    return str(max(1, len(os.sched_getaffinity(0)) // shards))
