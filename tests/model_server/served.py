"""Model servers with the hash model: in the test's own process, where every call is noted, and as
processes: `python -m tests.model_server.served ADDRESS RANK ADDRESSES`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from model_server.remote.model import RemoteModel
from model_server.remote.session import RemoteOptions
from model_server.serving.service import (
    ORPHAN_S,
    ModelService,
    ShardFailedError,
    ShardWorker,
    end_with_parent,
    fail,
    register,
    serve,
)
from model_server.shards import Shard
from model_server.supervisor import Supervisor
from model_server.wire import model_pb2_grpc
from model_server.wire.access import OPTIONS, Access
from tests.support.hash_model import HashModel
from tests.support.process import PATIENCE_S, ROOT


@dataclass(slots=True)
class Calls:
    """Notes every call that reaches a service, but heartbeats: its verb and its message."""

    service: ModelService
    seen: list[tuple[str, Any]] = field(default_factory=list)

    def take(self) -> list[tuple[str, Any]]:
        """Since the last time, in the order in which they are executed."""
        seen, self.seen[:] = list(self.seen), []
        return sorted(seen, key=lambda call: getattr(call[1], "number", -1))

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.service, verb)

        def noting(request: Any, context: Any) -> Any:
            self.seen.append((verb, request))
            return method(request, context)

        return method if verb == "Health" else noting


@dataclass(frozen=True, slots=True)
class Served:
    address: str
    model: HashModel
    service: ModelService
    calls: Calls
    failures: list[str]


@contextlib.contextmanager
def served(
    model: HashModel,
    address: str,
    *,
    access: Access | None = None,
    addresses: Sequence[str] = (),
    mode: str = "dynamic",
    max_batch_size: int = 64,
) -> Iterator[Served]:
    """One shard. `addresses`: of all of them, where there are several."""
    addresses = addresses or [address]
    access = access or Access()
    failures = list[str]()
    service = ModelService(
        ShardWorker(), mode, max_batch_size, addresses, addresses.index(address), failures.append
    )
    calls = Calls(service)
    server = grpc.server(ThreadPoolExecutor(8), interceptors=access.guards(), options=OPTIONS)
    register(calls, server)
    access.listen(server, address)
    server.start()

    def run() -> None:
        try:
            service.worker.run()
        except ShardFailedError as error:
            failures.append(str(error))
            server.stop(0.5)

    thread = threading.Thread(target=run)
    thread.start()
    service.model = model
    try:
        yield Served(address, model, service, calls, failures)
    finally:
        service.worker.stop()
        server.stop(None).wait()
        thread.join(PATIENCE_S)
    assert not model.breaches


@contextlib.contextmanager
def running(supervisor: Supervisor) -> Iterator[Supervisor]:
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()
        thread.join()


def unix(folder: Path, name: str = "shard") -> str:
    return f"unix:{folder}/{name}"


@contextlib.contextmanager
def connected(
    address: str,
    *,
    access: Access | None = None,
    model: str = "hash",
    mode: str = "dynamic",
    max_batch_size: int = 64,
    patience_s: float = 20.0,
    deadline_s: float = 60.0,
) -> Iterator[RemoteModel]:
    options = address, access or Access(), model, mode, max_batch_size, patience_s, deadline_s
    remote = RemoteModel(RemoteOptions(*options))
    try:
        yield remote
    finally:
        remote.close()


def stub(address: str) -> model_pb2_grpc.ModelServerStub:
    return model_pb2_grpc.ModelServerStub(grpc.insecure_channel(address))


def hash_shards(addresses: list[str]) -> list[Shard]:
    """Processes of a group that starts them."""
    command = [sys.executable, "-m", __name__]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return [
        Shard([*command, address, str(rank), ",".join(addresses)], environment, address)
        for rank, address in enumerate(addresses)
    ]


def main(address: str, rank: str, addresses: str) -> None:
    logging.basicConfig(level="INFO")
    service = ModelService(ShardWorker(), "dynamic", 64, addresses.split(","), int(rank), fail)
    model = HashModel(step_s=0.005, block_tokens=4)  # so that deaths find iterations in flight
    end_with_parent(ORPHAN_S)
    os._exit(serve(service, lambda: model, address, Access()))


if __name__ == "__main__":
    main(*sys.argv[1:])
