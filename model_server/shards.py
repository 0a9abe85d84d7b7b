"""The shards of a model on this machine, as a group that a supervisor runs.

The engine detects the loss of a shard by itself and opens its sequences again (`remote/`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc

from model_server.config import ServeConfig
from model_server.remote.session import ShardRanks
from model_server.supervisor import Command, IsReady, ProcessGroup, SilentError
from model_server.wire import model_pb2 as wire
from model_server.wire.access import Access
from telemetry.journal import check_writable

ROOT = Path(__file__).resolve().parent.parent
GRACE_S = 10.0  # for shards to end after SIGTERM


@dataclass(frozen=True, slots=True)
class Shard:
    """How to start a shard, and its address."""

    command: Sequence[str]
    environment: Mapping[str, str]
    address: str


def group_of(
    make: Callable[[int | None], Sequence[Shard]], access: Access, patience_s: float
) -> ProcessGroup:
    """`make` describes the shards of the next life. Its argument is the KV memory of the previous
    shards in tokens, on which the engine relies; None: no shard was ready yet. `patience_s`: time
    without a heartbeat after which a shard that was ready once counts as hanging."""
    kv_tokens: int | None = None

    @contextlib.contextmanager
    def probe(address: str) -> Iterator[IsReady]:
        def is_ready() -> bool:
            nonlocal kv_tokens
            try:
                (report,) = ranks.ask("Health", wire.HealthRequest(), patience_s)
            except grpc.RpcError as error:
                raise SilentError(f"has no heartbeat ({error.code().name})") from None
            if report.ready:
                kv_tokens = min(kv_tokens or report.kv_tokens, report.kv_tokens)
            return bool(report.ready)

        with contextlib.closing(ShardRanks([address], access)) as ranks:
            yield is_ready

    def programs() -> list[Command]:
        return [
            Command(
                f"model-server-{rank}" if rank else "model-server",
                shard.command,
                shard.environment,
                partial(probe, shard.address),
            )
            for rank, shard in enumerate(make(kv_tokens))
        ]

    return ProcessGroup(programs, GRACE_S)


def shards_here(config: ServeConfig, environment: Mapping[str, str] = os.environ) -> ProcessGroup:
    """All shards of a model server, on this machine. Raises LoadError, OSError."""
    access = Access(config.model_token, config.model_tls)
    access.check(config.listen)
    for rank in range(config.shards):
        if config.record is not None:
            check_writable(record_of(config.record, rank))
    make = partial(shards_of, config, environment)
    return group_of(make, access, config.model_patience)


def shards_of(
    config: ServeConfig, environment: Mapping[str, str], kv_tokens: int | None = None
) -> list[Shard]:
    """How to start the shards. They meet at a new port each time, unless one is given. `kv_tokens`:
    the KV memory of the previous shards, which these must have too."""
    addresses = [address_of(config.listen, rank) for rank in range(config.shards)]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        rendezvous = config.rendezvous or f"127.0.0.1:{probe.getsockname()[1]}"
    made = []
    for rank, listen in enumerate(addresses):
        own = replace(
            config,
            rank=rank,
            listen=listen,
            end_with_stdin=True,
            addresses=config.addresses or tuple(addresses),
            rendezvous=rendezvous,
            record=None if config.record is None else record_of(config.record, rank),
            kv_memory=config.kv_memory if kv_tokens is None else f"{kv_tokens}tokens",
        )
        variables = {**environment, **own.as_environment(), "PYTHONPATH": str(ROOT)}
        if config.shards > 1:
            cores = len(os.sched_getaffinity(0)) // config.shards  # which all of them share
            variables.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
            variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
        made.append(Shard([sys.executable, "-P", "-m", "model_server"], variables, listen))
    return made


def address_of(listen: str, rank: int) -> str:
    """The address of a rank. Rank 0 listens at `listen`, the others next to it."""
    if rank == 0:
        return listen
    if listen.startswith("unix:"):
        return f"{listen}-{rank}"
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) + rank}"


def record_of(path: str, rank: int) -> str:
    """The file that a shard writes. As with --listen, further shards write beside the first."""
    return f"{path}-{rank}" if rank else path
