"""The sequence diagrams of TGI's architecture page, as the calls that reach a model server:
start-up, and two clients, of which one joins late, leaves first, or leaves before a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batching import BatchingManager
from engine.inference import Inference
from generate import dynamic
from generate.modes import make_ledger
from requested import Sampling
from scheduling.policies.orca import Orca
from tests.batching.virtual import Books
from tests.model_server.served import Served, connected, served, unix
from tests.support.hash_model import HashModel


@dataclass(slots=True)
class World:
    """An engine that is stepped by hand over a model server."""

    manager: BatchingManager
    server: Served

    def submit(self, *prompt: int, tokens: int = 10) -> Inference:
        inference = Inference(prompt, tokens, Sampling(seed=1), 0.0)
        self.manager.enqueue(inference)
        return inference

    def step(self) -> list[str]:
        """One iteration; the calls that it took, in words."""
        self.manager.step(dynamic.lay_out, lambda: 0.0)
        return [described(verb, message) for verb, message in self.server.calls.take()]


def described(verb: str, message) -> str:  # type: ignore[no-untyped-def]
    """`Open 0: 3 tokens` or `Advance 0+3 1+1, releases 2`: sequences, and tokens of each."""
    if verb == "Open":
        return f"Open {', '.join(f'{new.id}: {len(new.ids)} tokens' for new in message.openings)}"
    if verb == "Advance":
        rows = " ".join(f"{i}+{n}" for i, n in zip(message.ids, message.tokens, strict=True))
        gone = ", ".join(map(str, message.released))
        return f"Advance {rows}" + (f", releases {gone}" if gone else "")
    return verb


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with (
        served(HashModel(), unix(tmp_path)) as server,
        connected(server.address, max_batch_size=8) as model,
    ):
        manager = BatchingManager(Orca(), Books(), max_batch_size=8, max_waiting=10)
        manager.serve(model, make_ledger("dynamic", model))
        yield World(manager, server)


def test_start_up_discovers_the_shards_checks_their_options_and_warms_them_up(
    world: World,
) -> None:
    verbs = [verb for verb, _ in world.server.calls.take()]
    assert verbs == ["ServiceDiscovery", "Info", "ClearCache", "Warmup"]


def test_two_clients_join_and_leave(world: World) -> None:
    world.server.calls.take()
    world.submit(1, 2, 3, tokens=4)
    assert world.step() == ["Open 0: 3 tokens", "Advance 0+3"]  # TGI's Prefill
    assert world.step() == ["Advance 0+1"]  # Decode
    world.submit(4, 5, tokens=4)
    # TGI prefills the second client alone, while the first waits, then decodes both
    assert world.step() == ["Open 1: 2 tokens", "Advance 0+1 1+2"]
    assert world.step() == ["Advance 0+1 1+1"]
    # the first has all its tokens: TGI's FilterBatch rides on the next iteration
    assert world.step() == ["Advance 1+1, releases 0"]
    assert world.step() == ["Advance 1+1"]
    assert world.step() == []


def test_a_client_that_leaves_early_is_released_with_the_next_iteration(world: World) -> None:
    world.server.calls.take()
    leaver = world.submit(1, 2, 3)
    world.submit(4, 5)
    assert world.step() == ["Open 0: 3 tokens, 1: 2 tokens", "Advance 0+3 1+2"]
    world.manager.cancel(leaver)
    assert world.step() == ["Advance 1+1, releases 0"]
    assert leaver.event.is_set()


def test_a_client_that_leaves_before_its_first_token_receives_nothing(
    world: World,
) -> None:
    world.server.calls.take()
    first = world.submit(1, 2, 3)
    assert world.step() == ["Open 0: 3 tokens", "Advance 0+3"]
    leaver = world.submit(4, 5)
    flight = world.manager.begin(0.0, dynamic.lay_out)
    world.manager.cancel(leaver)  # its prefill runs
    world.manager.finish(0.0, flight.outcome())  # type: ignore[union-attr]
    assert world.step() == ["Open 1: 2 tokens", "Advance 0+1 1+2", "Advance 0+1, releases 1"]
    assert leaver.end == "cancelled"
    assert first.end is None


def test_a_client_that_leaves_the_queue_never_reaches_the_model(world: World) -> None:
    world.server.calls.take()
    world.manager.cancel(world.submit(1, 2))
    world.submit(3)
    assert world.step() == ["Open 1: 1 tokens", "Advance 1+1"]
