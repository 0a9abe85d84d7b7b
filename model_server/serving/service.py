"""The calls of `wire/model.proto`: their work on the model's thread, and errors as statuses."""

from __future__ import annotations

# ruff: noqa: N802 - gRPC names methods as the service does
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict
from typing import Protocol, TypeVar

import grpc

from model_server.serving.worker import ShardFailedError, ShardWorker, StaleSessionError
from model_server.wire import messages, model_pb2_grpc
from model_server.wire import model_pb2 as wire
from seams import DeviceLostError, DeviceMemoryError, LoadedModel, Outcome

log = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.ServicerContext
LEASE_S = 3.0  # after so long without a call, another client may replace a session


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
