"""A shard from its start to its end: listen, load, execute, end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from model_server.serving.service import ModelService, ShardService
from model_server.serving.worker import ShardFailedError
from model_server.wire import model_pb2_grpc
from model_server.wire.access import OPTIONS, Access

log = logging.getLogger(__name__)

HANDLERS = 16  # threads: more than an engine's concurrent calls, so that heartbeats find a free one
FAILED = 3  # status of a process that must be replaced by a new one
LAST_WORDS_S = 1.0  # for the last responses
ORPHAN_S = 5.0  # for the current iteration, when the parent is gone

register: Callable[..., None] = model_pb2_grpc.add_ModelServerServicer_to_server


def serve(
    service: ModelService, load: Callable[[], ShardService], address: str, access: Access
) -> int:
    """Serves until SIGTERM or until the model fails for good; returns the exit status. Call it in
    the main thread, which then owns the model. Raises AccessError, OSError, and the errors of
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
