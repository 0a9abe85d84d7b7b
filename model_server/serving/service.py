"""A shard: the thread that owns its model and the order of its work, the calls of
`wire/model.proto` with errors as statuses, and the process from its start to its end."""

from __future__ import annotations

# ruff: noqa: N802 - gRPC names methods as the service does
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

import grpc

from model_server.wire import messages, model_pb2_grpc
from model_server.wire import model_pb2 as wire
from model_server.wire.access import OPTIONS, Access
from seams import DeviceLostError, DeviceMemoryError, LoadedModel, Outcome

log = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.ServicerContext
LEASE_S = 3.0  # after so long without a call, another client may replace a session
HANDLERS = 16  # threads: more than an engine's concurrent calls, so that heartbeats find a free one
FAILED = 3  # status of a process that must be replaced by a new one
LAST_WORDS_S = 1.0  # for the last responses
ORPHAN_S = 5.0  # for the current iteration, when the parent is gone

register: Callable[..., None] = model_pb2_grpc.add_ModelServerServicer_to_server


class StaleSessionError(Exception):
    """The session was replaced by another one; its sequences are gone."""


class ShardFailedError(Exception):
    """This process cannot continue and must be replaced."""


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    session: int | None
    number: int
    future: Future[Any] = field(default_factory=Future)


class ShardWorker:
    """Any thread submits work; `run` does it. Work of a session is done in the order of its
    numbers, not of its submission."""

    def __init__(self) -> None:
        self.session = 0  # the present one; 0: none yet
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # put is reentrant
        self._early: dict[int, _Job] = {}  # by number: earlier ones are still missing
        self._next = 0

    def ask(self, work: Callable[[], T], session: int | None = None, number: int = 0) -> Future[T]:
        """The future raises StaleSessionError if the session is not the present one. Work of no
        session has no order."""
        job = _Job(work, session, number)
        self._inbox.put(job)
        return job.future

    def begin(self, session: int) -> None:
        """Begins a new session, within `run`. Pending work of the previous one is refused."""
        self.session = session
        early, self._early, self._next = self._early, {}, 0
        for job in early.values():
            self._refuse(job)

    def stop(self) -> None:
        """Makes `run` return after the current work. May be called in a signal handler."""
        self._inbox.put(None)

    def run(self) -> None:
        """Raises ShardFailedError, after the caller of the work has received it."""
        while (job := self._inbox.get()) is not None:
            if job.session is None:
                self._do(job)
            elif job.session != self.session:
                self._refuse(job)
            else:
                self._early[job.number] = job
                while (due := self._early.pop(self._next, None)) is not None:
                    self._next += 1
                    self._do(due)

    def _do(self, job: _Job) -> None:
        try:
            result = job.work()
        except ShardFailedError as error:
            job.future.set_exception(error)
            raise
        except Exception as error:  # passed to the caller, which decides
            job.future.set_exception(error)
        else:
            job.future.set_result(result)

    def _refuse(self, job: _Job) -> None:
        error = StaleSessionError(
            f"session {job.session} is over; the present one is {self.session}"
        )
        job.future.set_exception(error)


class ShardService(LoadedModel, Protocol):
    def forget(self) -> None: ...


# remote/session.py decides how an engine reacts to each
STATUS: dict[type[Exception], grpc.StatusCode] = {
    DeviceMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StaleSessionError: grpc.StatusCode.FAILED_PRECONDITION,
    ShardFailedError: grpc.StatusCode.ABORTED,
    FutureTimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class ModelService(model_pb2_grpc.ModelServerServicer):
    """One shard. `model` is set when it is loaded; until then only calls that need no model
    succeed."""

    def __init__(
        self,
        worker: ShardWorker,
        layout: str,
        max_batch_size: int,
        addresses: Sequence[str],
        rank: int,
        fail: Callable[[str], None],
    ) -> None:
        """`fail` (reason): ends the process, even while the worker is busy."""
        self.worker = worker
        self.layout = layout
        self.max_batch_size = max_batch_size
        self.addresses = addresses
        self.rank = rank
        self.fail = fail
        self.model: ShardService | None = None
        self._used_s = 0.0  # when the session's client last called

    # --- calls that do not use the model's thread -------------------------------------------

    def ServiceDiscovery(self, request: wire.Nothing, context: Context) -> wire.Addresses:
        return wire.Addresses(addresses=self.addresses)

    def Info(self, request: wire.Nothing, context: Context) -> wire.ModelInfo:
        model = self._loaded(context)
        return wire.ModelInfo(
            layout=self.layout,
            context=model.context,
            vocab_size=model.vocab_size,
            rank=self.rank,
            shards=len(self.addresses),
            **asdict(model.info),
        )

    def Health(self, request: wire.HealthRequest, context: Context) -> wire.HealthReport:
        self._note_use(request.session)
        if self.model is None:
            return wire.HealthReport()
        kv_tokens = self.model.num_blocks * self.model.block_tokens
        return wire.HealthReport(ready=True, session=self.worker.session, kv_tokens=kv_tokens)

    # --- calls for the model's thread -------------------------------------------------------

    def Warmup(self, request: wire.Limits, context: Context) -> wire.Capacity:
        model = self._loaded(context)
        if request.max_batch_size > self.max_batch_size:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"--max-batch-size {request.max_batch_size} is more than the model server's memory "
                f"was measured for (--max-batch-size {self.max_batch_size} there)",
            )
        self._wait(self.worker.ask(model.warm_up), context)
        self._used_s = time.monotonic()
        return wire.Capacity(
            blocks=model.num_blocks,
            block_tokens=model.block_tokens,
            max_total_tokens=model.num_blocks * model.block_tokens,
        )

    def ClearCache(self, request: wire.Session, context: Context) -> wire.Nothing:
        model = self._loaded(context)
        if not request.session:
            if request.lost == self.worker.session and len(self.addresses) > 1:
                self.fail("another shard was lost, and this one is useless without it")
            return wire.Nothing()
        held = self.worker.session not in (0, request.lost)
        if held and time.monotonic() - self._used_s < LEASE_S:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another server uses this model")
        self._used_s = time.monotonic()

        def begin() -> None:
            model.forget()
            self.worker.begin(request.session)

        self._wait(self.worker.ask(begin), context)
        log.info("session %016x begins", request.session)
        return wire.Nothing()

    def Open(self, request: wire.Openings, context: Context) -> wire.Nothing:
        model = self._loaded(context)
        new = [messages.read_opening(opening) for opening in request.openings]
        self._in_order(request, context, lambda: model.open(new))
        return wire.Nothing()

    def Advance(self, request: wire.Iteration, context: Context) -> wire.Outcome:
        model = self._loaded(context)
        steps = messages.read_steps(request)

        def execute() -> Outcome:
            return model.start(steps, request.released).result()

        outcome = self._in_order(request, context, execute)
        return messages.outcome(outcome, self.rank)

    # --- waiting, and errors ----------------------------------------------------------------

    def _note_use(self, session: int) -> None:
        if session == self.worker.session:
            self._used_s = time.monotonic()

    def _loaded(self, context: Context) -> ShardService:
        if self.model is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the model is still being loaded")
        return self.model

    def _in_order(
        self,
        request: wire.Openings | wire.Iteration,
        context: Context,
        work: Callable[[], T],
    ) -> T:
        def guarded() -> T:
            try:
                return work()
            except DeviceLostError as error:
                raise ShardFailedError(f"the device is lost: {error}") from error
            except Exception as error:
                if len(self.addresses) == 1:
                    raise
                # the other ranks wait in a collective that never completes
                raise ShardFailedError(f"rank {self.rank} failed: {error}") from error

        self._note_use(request.session)
        return self._wait(self.worker.ask(guarded, request.session, request.number), context)

    def _wait(self, future: Future[T], context: Context) -> T:
        try:
            return future.result(min(context.time_remaining(), threading.TIMEOUT_MAX))
        except Exception as error:
            code = STATUS.get(type(error), grpc.StatusCode.INTERNAL)
            if code is grpc.StatusCode.INTERNAL:
                log.exception("a call failed")
            context.abort(code, str(error) or type(error).__name__)
            raise AssertionError("abort raises") from error


def serve(
    service: ModelService, load: Callable[[], ShardService], address: str, access: Access
) -> int:
    """Serves until SIGTERM or until the model fails for good; returns the exit status. Call it in
    the main thread, which then owns the model. Raises LoadError, OSError, and the errors of
    `load`."""
    worker = service.worker
    server = grpc.server(
        ThreadPoolExecutor(HANDLERS, "grpc"), interceptors=access.guards(), options=OPTIONS
    )
    register(service, server)
    access.listen(server, address)
    server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: worker.stop())
    service.model = load()
    info = service.model.info
    if info.unused_gpu is None:
        log.info("ready: %s on %s", info.name, address)
    else:
        log.warning("ready: %s on %s; %s", info.name, address, info.unused_gpu)
    status = 0
    try:
        worker.run()
    except ShardFailedError as error:
        log.critical("the shard failed and is shutting down: %s", error)
        status = FAILED
    server.stop(LAST_WORDS_S).wait()
    return status


def fail(reason: str) -> None:
    """Ends the process soon, even if its model's thread hangs in a collective."""
    log.critical("the shard is shutting down: %s", reason)
    threading.Timer(LAST_WORDS_S, os._exit, [FAILED]).start()


def end_with_parent(within_s: float) -> None:
    """Ends this process when its parent is gone, or all processes that use it: those that hold the
    other end of standard input."""

    def watch() -> None:
        sys.stdin.buffer.read()
        log.warning("the process that started this one is gone")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(within_s)
        os._exit(FAILED)  # the current iteration may wait for a shard for ever

    threading.Thread(target=watch, name="parent", daemon=True).start()
