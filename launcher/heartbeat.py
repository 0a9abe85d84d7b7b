"""Whether the model servers live: each is asked for its health, however long an iteration takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import grpc
import grpc.aio

from model_server.wire import model_pb2, model_pb2_grpc

INTERVAL_S = 0.5


class Heartbeat:
    """Of one group of shards, from its start on."""

    def __init__(self, addresses: Sequence[str], patience_s: float) -> None:
        self._addresses = addresses
        self._patience_s = patience_s

    async def lost(self) -> int:
        """Returns the rank of the first shard that has answered before and is silent for longer
        than the patience. One that has not answered yet is still starting."""
        watches = [asyncio.create_task(self._silence(rank)) for rank in range(len(self._addresses))]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _silence(self, rank: int) -> int:
        answered_s: float | None = None
        async with grpc.aio.insecure_channel(self._addresses[rank]) as channel:
            stub = model_pb2_grpc.ModelServerStub(channel)  # type: ignore[no-untyped-call]
            while True:
                try:
                    await stub.Health(model_pb2.HealthRequest(), timeout=self._patience_s)
                    answered_s = time.monotonic()
                except grpc.aio.AioRpcError:
                    silent_s = 0.0 if answered_s is None else time.monotonic() - answered_s
                    if silent_s > self._patience_s:
                        return rank
                await asyncio.sleep(INTERVAL_S)
