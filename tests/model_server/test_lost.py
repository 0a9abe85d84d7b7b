"""A model server that dies, hangs or cannot be reached costs no request its answer or a token. Real
processes, real signals; the hash model shows any wrong token."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from batching import BatchingManager, dynamic_batching_loop
from engine.inference import Inference
from generate.modes import make_ledger
from model_server.remote.model import RemoteModel
from model_server.shards import Shard, group_of
from model_server.supervisor import Supervisor
from model_server.wire.access import Access
from scheduling.policies.orca import Orca
from seams import Sampling
from tests.batching.virtual import Records
from tests.model_server.served import connected, hash_shards, running, served, unix
from tests.support.hash_model import HashModel
from tests.support.hashed import reference
from tests.support.process import eventually

REQUESTS, TOKENS = 12, 60
PATIENCE_S = 2.0  # of heartbeats: hash models are quick to answer, busy machines are not


class Driven(NamedTuple):
    """An engine whose loop runs, and an entry for each time that the model came back."""

    manager: BatchingManager
    returns: list[None]


@contextlib.contextmanager
def driving(model: RemoteModel) -> Iterator[Driven]:
    manager = BatchingManager(Orca(), [Records()], max_batch_size=8, max_waiting=1000, lookahead=1)
    driven = Driven(manager, [])

    def note_return() -> None:
        driven.returns.append(None)
        manager.wake()

    model.on_return = note_return
    manager.serve(model, make_ledger("dynamic", model))
    thread = threading.Thread(target=dynamic_batching_loop, args=(manager, time.monotonic))
    thread.start()
    try:
        yield driven
    finally:
        manager.abort("the test is over")
        thread.join()


def under_load(engine: Driven, mishaps: list[Callable[[], None]]) -> None:
    """Requests that run while the mishaps happen, one after the other; each is noticed, and the
    model comes back."""
    manager = engine.manager
    inferences = [
        Inference([7, i], TOKENS, Sampling(seed=i), time.monotonic()) for i in range(REQUESTS)
    ]
    for inference in inferences:
        manager.enqueue(inference)

    def tokens() -> int:
        return sum(len(inference.ids) for inference in inferences)

    def befall(mishap: Callable[[], None]) -> None:
        before, returns = tokens(), len(engine.returns)
        eventually(lambda: tokens() > before + REQUESTS, "tokens")
        mishap()
        eventually(lambda: len(engine.returns) > returns, "the model is back")

    for mishap in mishaps:
        befall(mishap)
    for i, inference in enumerate(inferences):
        assert inference.event.wait(60.0)
        assert inference.error is None
        assert inference.ids == [7, i, *reference([7, i], TOKENS, seed=i)]
    assert manager.memory.used == 0
    (books,) = manager.recorders
    assert isinstance(books, Records)
    assert len(books.requests) == REQUESTS  # each was answered once


def test_killed_or_stopped_shards_lose_no_response_and_no_token(tmp_path: Path) -> None:
    addresses = [unix(tmp_path, f"rank-{rank}") for rank in range(2)]
    kv_tokens = list[int | None]()

    def shards(as_before: int | None) -> list[Shard]:
        kv_tokens.append(as_before)
        return hash_shards(addresses)

    supervisor = Supervisor([group_of(shards, Access(), PATIENCE_S)])

    def to_rank(rank: int, number: int) -> Callable[[], None]:
        return lambda: os.kill(supervisor.processes[rank].pid, number)

    with (
        running(supervisor),
        connected(addresses[0], patience_s=PATIENCE_S, max_batch_size=8) as model,
        driving(model) as engine,
    ):
        under_load(
            engine,
            [to_rank(0, signal.SIGKILL), to_rank(1, signal.SIGKILL), to_rank(1, signal.SIGSTOP)],
        )
        # the ledger counts on as much memory as there was
        assert kv_tokens[0] is None
        assert kv_tokens[-1] == model.num_blocks * model.block_tokens


def test_a_model_server_that_was_out_of_reach_is_used_again(tmp_path: Path) -> None:
    """It is the same process: work of the session before is refused."""
    address = unix(tmp_path)
    (shard,) = hash_shards([address])

    def vanish() -> None:
        os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: model.lost is not None, "the loss is noticed")
        os.kill(process.pid, signal.SIGCONT)

    with subprocess.Popen(shard.command, env=shard.environment, stdin=subprocess.PIPE) as process:
        try:
            with (
                connected(address, patience_s=PATIENCE_S, max_batch_size=8) as model,
                driving(model) as engine,
            ):
                under_load(engine, [vanish, vanish])
        finally:
            process.kill()


@pytest.mark.parametrize("lost", [False, True])
def test_the_deadline_of_an_iteration_decides_and_not_the_patience_of_heartbeats(
    lost: bool, tmp_path: Path
) -> None:
    hangs = threading.Event()

    def hang(number: int) -> None:
        if number == 1:
            hangs.wait(60.0 if lost else 1.5 * PATIENCE_S)

    with (
        served(HashModel(before_iteration=hang), unix(tmp_path)) as server,
        connected(
            server.address, patience_s=PATIENCE_S, deadline_s=0.5 if lost else 60.0,
            max_batch_size=8,
        ) as remote,
        driving(remote) as engine,
    ):  # fmt: skip
        inference = Inference([1], 2, Sampling(), time.monotonic())
        engine.manager.enqueue(inference)
        if lost:
            eventually(lambda: remote.lost is not None, "the loss is noticed")
            hangs.set()
        assert inference.event.wait(60.0)
        assert inference.ids == [1, *reference([1], 2, seed=0)]
        assert len(engine.returns) == lost
