"""How a session with a model server begins: its ranks, the model, and the KV memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from model_server.remote.session import Session, ShardRanks, describe
from model_server.wire import model_pb2 as wire
from model_server.wire.access import Access, AccessError

# with these, another attempt would fail the same way
FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)
ANY_HOST = ("0.0.0.0", "[::]")


class RemoteModelError(Exception):
    """A model server that waiting will not make usable; the message says why."""


class NotYetError(Exception):
    """The model server cannot be used yet, but may be later."""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    address: str
    access: Access
    model: str  # expected there
    mode: str
    max_batch_size: int
    patience_s: float  # time without a heartbeat after which a rank is lost
    deadline_s: float  # of an iteration


@dataclass(frozen=True, slots=True)
class RemoteInfo:
    """`runtime.executor.ModelInfo`, and where the model runs."""

    name: str
    parameters: int
    dtype: str
    device: str
    note: str | None
    kernels: dict[str, str]  # of rank 0
    batch_invariant: bool
    unused_gpu: str | None
    speculate: int
    address: str
    shards: int


class ModelShape(NamedTuple):
    """The properties on which the engine's ledger and its clients rely."""

    context: int
    vocab_size: int
    block_tokens: int
    blocks: int


class Life(NamedTuple):
    session: Session
    info: RemoteInfo
    shape: ModelShape


def begin(
    options: RemoteOptions, on_loss: Callable[[Session], None], before: Session | None = None
) -> Life:
    """Starts a session in TGI's order: discovery, info, clearing the cache, then warm-up, which
    overwrites the cache. `before`: the session that was lost. Raises NotYetError,
    RemoteModelError."""
    ranks = None
    try:
        ranks = ShardRanks([options.address], options.access)
        (found,) = ranks.ask("ServiceDiscovery", wire.Nothing(), options.patience_s)
        # the connection to a single shard exists already
        if len(found.addresses) > 1:
            ranks.close()
            addresses = [reachable(address, options.address) for address in found.addresses]
            ranks = ShardRanks(addresses, options.access)
        return _begin(ranks, options, on_loss, before)
    except Exception as error:
        if ranks is not None:
            ranks.close()
        if isinstance(error, AccessError):
            raise RemoteModelError(str(error)) from None
        if isinstance(error, grpc.RpcError):
            reason = f"{options.address}: {describe(error)}"
            raise (RemoteModelError if error.code() in FINAL else NotYetError)(reason) from None
        raise


def reachable(address: str, found_at: str) -> str:
    """The address of a shard. If it listens on all addresses, it is on the first shard's host."""
    host, _, port = address.rpartition(":")
    return f"{found_at.rpartition(':')[0]}:{port}" if host in ANY_HOST else address


def _begin(
    ranks: ShardRanks,
    options: RemoteOptions,
    on_loss: Callable[[Session], None],
    before: Session | None,
) -> Life:
    found = ranks.ask("Info", wire.Nothing(), options.patience_s)
    for rank, info in enumerate(found):
        for option, there, here in (
            ("--model", info.name, options.model),
            ("--mode", info.layout, options.mode),
        ):
            if there != here:
                raise RemoteModelError(
                    f"{ranks.name(rank)} was started with {option} {there}, this server with "
                    f"{option} {here}"
                )
        if (info.rank, info.shards) != (rank, len(found)):
            raise RemoteModelError(
                f"{ranks.name(rank)} was started as rank {info.rank} of {info.shards} shards; "
                f"expected: rank {rank} of {len(found)}"
            )
    session = Session(ranks, options.deadline_s, on_loss)
    lost = 0 if before is None else before.id
    ranks.ask("ClearCache", wire.Session(session=session.id, lost=lost), options.deadline_s)
    limits = wire.Limits(max_batch_size=options.max_batch_size)
    capacities = ranks.ask("Warmup", limits, options.deadline_s)
    first = found[0]
    unused = [
        f"{ranks.name(rank)}: {info.unused_gpu}"
        for rank, info in enumerate(found)
        if info.HasField("unused_gpu")
    ]
    return Life(
        session,
        RemoteInfo(
            name=first.name,
            parameters=first.parameters,
            dtype=first.dtype,
            device=first.device,
            note=first.note if first.HasField("note") else None,
            kernels=dict(sorted(first.kernels.items())),
            batch_invariant=all(info.batch_invariant for info in found),
            unused_gpu="; ".join(unused) or None,
            speculate=min(info.speculate for info in found),
            address=options.address,
            shards=len(found),
        ),
        ModelShape(
            context=first.context,
            vocab_size=first.vocab_size,
            block_tokens=capacities[0].block_tokens,
            blocks=min(capacity.blocks for capacity in capacities),
        ),
    )
