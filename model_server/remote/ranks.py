"""Connections to all ranks of a model server, which receive the same calls, and the meaning of
errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from model_server.wire import model_pb2_grpc
from model_server.wire.access import Access


class ShardRanks:
    """Raises AccessError. Nothing is connected before the first call."""

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


def is_final(error: Any) -> bool:
    """Whether another attempt would fail the same way."""
    return error.code() in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    )
