"""Several processes as one router: `--workers N`.

The first process answers nothing. It accepts connections and hands them to the workers in turn,
replaces a worker that died or hangs, and lets each of them ask all: for their figures, and for a
change that an operator wants. It keeps the changes, for workers that start later. If it dies, the
workers end as at SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from router import log
from router.rules.messages import errors

BACKLOG = 4096
ACCEPTED_AT_ONCE = 32
LOOK_S = 1.0  # between pings of all workers
HANGS_LOOKS, STARTS_LOOKS = 5, 60  # without an answer, after which a worker is killed
ANSWER_WITHIN_S = 5.0
EARLY_S = 5.0  # a worker that dies earlier is replaced after RESTART_S
RESTART_S = 1.0
MOST_BYTES = 64 * 2**20  # of one message
CHANGES = frozenset({"change", "reread"})  # questions that change every worker
ENDING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's place among `of`: connections come through `clients`, questions through `hub`."""

    number: int
    of: int
    clients: socket.socket
    hub: socket.socket


class Workers:
    """All workers of this router, for one of them. `does`: what each does when it is asked."""

    def __init__(self, seat: Seat | None) -> None:
        self.seat = seat
        self.does: dict[str, Callable[[Any], Any]] = {"ping": lambda _: None}
        # what was answered so far, and who waits for all
        self._asked: dict[int, tuple[list[Any], asyncio.Future[None]]] = {}
        self._count = os.getpid() << 20  # none of a worker before it
        self._hub: asyncio.StreamWriter | None = None

    def share(self, limit: int) -> int:
        """This worker's part of a limit. All parts together are the limit."""
        if self.seat is None:
            return limit
        return limit // self.seat.of + (self.seat.number < limit % self.seat.of)

    async def ask(self, name: str, argument: Any = None) -> list[Any]:
        """What each worker answers; this one alone, if there is no other. Raises RouterError if
        one is silent."""
        if self._hub is None:
            return [self.does[name](argument)]
        self._count += 1
        number = self._count
        values, waiter = self._asked[number] = [], asyncio.get_running_loop().create_future()
        self._hub.write(_line(name=name, argument=argument, number=number))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await waiter
                return values
        except TimeoutError:
            raise errors.unavailable("Not every worker answers.", "overloaded") from None
        finally:
            del self._asked[number]

    async def listen(self, seat: Seat, connected: Callable[[], asyncio.Protocol]) -> None:
        """Takes connections and answers questions, until the first process ends."""
        loop = asyncio.get_running_loop()
        reader, self._hub = await asyncio.open_unix_connection(sock=seat.hub, limit=MOST_BYTES)
        opening: set[asyncio.Task[Any]] = set()

        def take() -> None:
            with contextlib.suppress(OSError):
                _, numbers, _, _ = socket.recv_fds(seat.clients, 1, 1)
                for number in numbers:
                    client = socket.socket(fileno=number)
                    client.setblocking(False)
                    task = loop.create_task(loop.connect_accepted_socket(connected, client))
                    opening.add(task)
                    task.add_done_callback(opening.discard)

        loop.add_reader(seat.clients, take)
        try:
            while line := await reader.readline():
                told = json.loads(line)
                if "name" in told:
                    value = self.does[told["name"]](told["argument"])
                    answer = _line(to=told["by"], number=told["number"], of=told["of"], value=value)
                    self._hub.write(answer)
                elif asked := self._asked.get(told["number"]):
                    values, waiter = asked
                    values.append(told["value"])
                    if len(values) == told["of"] and not waiter.done():
                        waiter.set_result(None)
        finally:
            loop.remove_reader(seat.clients)  # it is readable for ever if the first process is gone


def _line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A worker as the first process sees it. `looks`: pings since it was last heard. Not a time:
    the first process may have been stopped itself."""

    number: int
    pid: int
    clients: socket.socket
    hub: asyncio.StreamWriter
    looks: int = 0
    most_looks: int = STARTS_LOOKS

    def tell(self, message: dict[str, Any]) -> None:
        self.hub.write(_line(**message))


@dataclass(slots=True, eq=False)
class WorkerSupervisor:
    """The first process. `work` runs a worker until it ends."""

    _listener: socket.socket
    _count: int
    _work: Callable[[Seat], None]
    _workers: dict[int, WorkerProcess] = field(default_factory=dict)  # by number
    _turn: int = 0
    _changes: list[dict[str, Any]] = field(default_factory=list)
    _ends: set[socket.socket] = field(default_factory=set)  # this process's, of what workers hear
    _ending: bool = False

    async def run(self) -> None:
        """Returns when SIGTERM or SIGINT came and all workers have ended."""
        loop = asyncio.get_running_loop()
        for awaited in ENDING:
            loop.add_signal_handler(awaited, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._put, "reread", None)
        self._listener.setblocking(False)
        self._look()
        await asyncio.gather(*map(self._keep_running, range(self._count)))
        log.event(logging.INFO, "all workers ended")

    async def _keep_running(self, number: int) -> None:
        """Replaces a worker that ends."""
        while not self._ending:
            started_s = time.monotonic()
            try:
                status: object = await self._serve(number)
            except OSError as error:  # no process, memory or file is left for another one
                status = str(error)
            if not self._ending:
                log.event(logging.ERROR, "worker ended", worker=number, status=status)
                early = time.monotonic() - started_s < EARLY_S
                await asyncio.sleep(RESTART_S if early else 0.0)

    async def _serve(self, number: int) -> int:
        """Starts a worker and hears it until it ends; its exit status."""
        clients, own_clients = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hub, own_hub = socket.socketpair()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # a worker would lose them yet
        try:
            pid = os.fork()
            if pid == 0:
                for end in (self._listener, clients, hub, *self._ends):
                    end.close()
                self._become(Seat(number, self._count, own_clients, own_hub))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        own_clients.close()
        own_hub.close()
        clients.setblocking(False)
        self._ends |= {clients, hub}
        reader, writer = await asyncio.open_unix_connection(sock=hub, limit=MOST_BYTES)
        worker = self._workers[number] = WorkerProcess(number, pid, clients, writer)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        for change in self._changes:
            worker.tell(change)
        if self._ending:
            os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(OSError):
            async for line in reader:
                worker.looks, worker.most_looks = 0, HANGS_LOOKS
                told = json.loads(line)
                if "name" in told:
                    self._put(told["name"], told["argument"], number, told["number"])
                elif asker := self._workers.get(told["to"]):
                    asker.tell(told)
        writer.close()
        clients.close()
        self._ends -= {clients, hub}
        del self._workers[number]
        return os.waitpid(pid, 0)[1]

    def _become(self, seat: Seat) -> NoReturn:
        """In the process of a worker: is one until it ends."""
        signal.set_wakeup_fd(-1)
        for number in ENDING:  # of which none may be lost until it listens
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        seat.clients.setblocking(False)
        status = 1
        try:
            self._work(seat)
            status = 0
        except Exception:
            log.LOGGER.exception("worker failed")
        finally:
            os._exit(status)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:  # closed here, also if no worker can take it
                for _ in range(self._count):
                    self._turn = (self._turn + 1) % self._count
                    worker = self._workers.get(self._turn)
                    if worker is not None:
                        with contextlib.suppress(OSError):
                            socket.send_fds(worker.clients, [b"c"], [client.fileno()])
                            break

    def _end(self) -> None:
        self._ending = True
        for worker in self._workers.values():
            os.kill(worker.pid, signal.SIGTERM)

    def _look(self) -> None:
        """Kills a worker that hangs."""
        if self._ending:
            return
        asyncio.get_running_loop().call_later(LOOK_S, self._look)
        for worker in self._workers.values():
            worker.looks += 1
            if worker.looks > worker.most_looks:
                log.event(logging.ERROR, "worker hangs", worker=worker.number)
                os.kill(worker.pid, signal.SIGKILL)
        self._put("ping", None)

    def _put(self, name: str, argument: Any, by: int = -1, number: int = 0) -> None:
        """Asks all workers what one of them asked, or the first process, which hears no answer."""
        question = {"name": name, "argument": argument, "by": by, "number": number}
        question["of"] = len(self._workers)
        if name in CHANGES:
            self._keep({**question, "by": -1})
        for worker in self._workers.values():
            worker.tell(question)

    def _keep(self, change: dict[str, Any]) -> None:
        """For workers that start later. A server that is removed needs no earlier change."""
        if change["argument"] is not None and change["argument"][0] == "remove":
            url = change["argument"][1]["url"]
            changes = self._changes
            self._changes = [
                c for c in changes if not c["argument"] or c["argument"][1]["url"] != url
            ]
        self._changes.append(change)
