"""A session of an engine with a model server, from its start to its loss: the connections to
all ranks, which receive the same calls, the model and its KV memory, and the meaning of errors."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from model_server.wire import messages, model_pb2_grpc
from model_server.wire import model_pb2 as wire
from model_server.wire.access import Access
from seams import DeviceMemoryError, LoadError, ModelLostError, Opening, OpeningError, Outcome, Step

# errors for the engine; any other status means that the model is lost
ERRORS: dict[grpc.StatusCode, Callable[[str], Exception]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: DeviceMemoryError,
    grpc.StatusCode.INTERNAL: RuntimeError,
}

# with these, another attempt would fail the same way
FINAL = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)
ANY_HOST = ("0.0.0.0", "[::]")


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


class ShardRanks:
    """Raises LoadError. Nothing is connected before the first call."""

    def __init__(self, addresses: Sequence[str], access: Access) -> None:
        self.addresses = addresses
        self._metadata = access.metadata
        self._channels = [access.channel(address) for address in addresses]
        make_stub: Callable[[grpc.Channel], Any] = model_pb2_grpc.ModelServerStub
        self._stubs = [make_stub(channel) for channel in self._channels]

    def send(self, verb: str, message: Any, timeout_s: float) -> list[Any]:
        """Calls all ranks concurrently; returns the calls by rank."""
        return [
            getattr(stub, verb).future(message, timeout=timeout_s, metadata=self._metadata)
            for stub in self._stubs
        ]

    def ask(self, verb: str, message: Any, timeout_s: float) -> list[Any]:
        """The answers of all ranks. Raises grpc.RpcError."""
        return [call.result() for call in self.send(verb, message, timeout_s)]

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.addresses[rank]})"

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def describe(call: Any) -> str:
    """Describes a failed call or its error. For a failed connection, gRPC repeats the address three
    times before the reason; only the reason is kept."""
    details = call.details()
    if details.startswith("failed to connect"):
        details = f"cannot connect: {details.rpartition('error: ')[2]}"
    return f"{call.code().name}: {details}"


class ShardsDivergedError(ModelLostError):
    """The ranks drew different tokens in one iteration, so their state is no longer valid."""


class Session:
    """The ranks of one model, which receive the same calls in the same order.

    `lose` may be called by any thread, `open` and `start` by the engine's.
    """

    def __init__(
        self,
        id: int,
        ranks: ShardRanks,
        info: RemoteInfo,
        shape: ModelShape,
        deadline_s: float,
        on_loss: Callable[[Session], None],
    ) -> None:
        """`deadline_s` limits an iteration; heartbeats detect a loss much earlier. `on_loss` is
        called once, by the thread that detects the loss."""
        self.id = id
        self.ranks = ranks
        self.info = info
        self.shape = shape
        self.deadline_s = deadline_s
        self.lost: str | None = None
        self._on_loss = on_loss
        self._beat = wire.HealthRequest(session=self.id)
        self._number = 0
        self._lock = threading.Lock()
        self._calls: set[Any] = set()

    # --- seams.Model ------------------------------------------------------------------------

    def open(self, new: Sequence[Opening]) -> None:
        """Raises OpeningError for sequences that no message can express, ModelLostError."""
        openings, refused = [], dict[int, str]()
        for opening in new:
            try:
                openings.append(messages.opening(opening))
            except Exception as error:  # of its own numbers or texts
                refused[opening.id] = str(error)
        if openings:
            message = wire.Openings(session=self.id, number=self._take_number(), openings=openings)
            self._send("Open", message)  # nothing waits: an error appears in the next iteration
        if refused:
            raise OpeningError(refused)

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> list[Any]:
        """The calls of an iteration, by rank."""
        message = messages.iteration(self.id, self._take_number(), steps, released)
        return self._send("Advance", message)

    def result(self, calls: Sequence[Any]) -> Outcome:
        """Waits for an iteration. Raises ModelLostError, DeviceMemoryError, RuntimeError."""
        answers: list[wire.Outcome] = []
        for call in calls:
            try:
                answers.append(call.result())
            except (grpc.RpcError, grpc.FutureCancelledError):
                if self.lost is None and call.code() in ERRORS:
                    raise ERRORS[call.code()](call.details()) from None
                self.lose(describe(call))
                raise ModelLostError(self.lost) from None
        if len({answer.digest for answer in answers}) > 1:
            digests = ", ".join(answer.digest.hex() for answer in answers)
            self.lose(f"the ranks drew different tokens (digests {digests})")
            raise ShardsDivergedError(self.lost)
        return messages.read_outcome(answers[0])

    def _take_number(self) -> int:
        number, self._number = self._number, self._number + 1
        return number

    def _send(self, verb: str, message: Any) -> list[Any]:
        try:
            calls = self.ranks.send(verb, message, self.deadline_s)
        except ValueError:  # closed, since another session has begun
            raise ModelLostError(self.lost) from None
        with self._lock:
            self._calls.update(calls)
        for rank, call in enumerate(calls):
            call.add_done_callback(lambda call, rank=rank: self._ended(rank, call))
        if self.lost is not None:  # it was lost before these calls could be cancelled with it
            self._cancel()
        return calls

    def _ended(self, rank: int, call: Any) -> None:
        """The first rank that fails ends the wait for the others."""
        with self._lock:
            self._calls.discard(call)
        if call.code() not in (grpc.StatusCode.OK, *ERRORS):
            self.lose(f"{self.ranks.name(rank)}: {describe(call)}")

    # --- its end ----------------------------------------------------------------------------

    def beat(self, timeout_s: float) -> None:
        """Sends a heartbeat to every rank; a rank that does not respond in time is lost."""
        for rank, call in enumerate(self.ranks.send("Health", self._beat, timeout_s)):
            try:
                report = call.result()
            except grpc.RpcError as error:
                self.lose(f"{self.ranks.name(rank)} has no heartbeat: {describe(error)}")
            else:
                if report.session != self.id:
                    self.lose(f"{self.ranks.name(rank)} has forgotten the session")

    def lose(self, reason: str) -> None:
        with self._lock:
            if self.lost is not None:
                return
            self.lost = reason
        self._on_loss(self)
        self._cancel()

    def dismiss(self, timeout_s: float) -> None:
        """Ends the remaining shards after a loss: they cannot continue without the lost one."""
        if len(self.ranks.addresses) > 1:
            for call in self.ranks.send("ClearCache", wire.Session(lost=self.id), timeout_s):
                with contextlib.suppress(grpc.RpcError):
                    call.result()

    def _cancel(self) -> None:
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()


def begin(
    options: RemoteOptions, on_loss: Callable[[Session], None], before: Session | None = None
) -> Session:
    """Starts a session in TGI's order: discovery, info, clearing the cache, then warm-up, which
    overwrites the cache. `before`: the session that was lost. Raises NotYetError, and LoadError if
    waiting will not make it usable."""
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
        if isinstance(error, grpc.RpcError):
            reason = f"{options.address}: {describe(error)}"
            raise (LoadError if error.code() in FINAL else NotYetError)(reason) from None
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
) -> Session:
    found = ranks.ask("Info", wire.Nothing(), options.patience_s)
    for rank, info in enumerate(found):
        for option, there, here in (
            ("--model", info.name, options.model),
            ("--mode", info.layout, options.mode),
        ):
            if there != here:
                raise LoadError(
                    f"{ranks.name(rank)} was started with {option} {there}, this server with "
                    f"{option} {here}"
                )
        if (info.rank, info.shards) != (rank, len(found)):
            raise LoadError(
                f"{ranks.name(rank)} was started as rank {info.rank} of {info.shards} shards; "
                f"expected: rank {rank} of {len(found)}"
            )
    id = secrets.randbits(64) or 1
    lost = 0 if before is None else before.id
    ranks.ask("ClearCache", wire.Session(session=id, lost=lost), options.deadline_s)
    limits = wire.Limits(max_batch_size=options.max_batch_size)
    capacities = ranks.ask("Warmup", limits, options.deadline_s)
    unused = [
        f"{ranks.name(rank)}: {info.unused_gpu}"
        for rank, info in enumerate(found)
        if info.HasField("unused_gpu")
    ]
    first = found[0]
    info = RemoteInfo(
        **{name: getattr(first, name) for name in ("name", "parameters", "dtype", "device")},
        note=first.note if first.HasField("note") else None,
        kernels=dict(sorted(first.kernels.items())),
        batch_invariant=all(info.batch_invariant for info in found),
        unused_gpu="; ".join(unused) or None,
        speculate=min(info.speculate for info in found),
        address=options.address,
        shards=len(found),
    )
    blocks = min(capacity.blocks for capacity in capacities)
    shape = ModelShape(first.context, first.vocab_size, capacities[0].block_tokens, blocks)
    return Session(id, ranks, info, shape, options.deadline_s, on_loss)
