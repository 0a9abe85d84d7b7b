"""Readers of a request's tokens, beside the loop that makes them."""

from __future__ import annotations

import time

from api.follow import Follower
from batching import BatchingManager
from engine.inference import Inference
from generate.modes import MODES, make_ledger
from records import IterationRecord, RequestRecord
from requested import Sampling
from scheduling.policies.orca import Orca
from tests.hash_model import HashModel
from tests.server.hash_app import byte_tokenizer


def test_a_response_ends_for_its_reader_once_it_is_counted() -> None:
    """Or a client could ask for statistics that lack the response it has."""
    inference = Inference([1, 2], 3, Sampling(temperature=0.0), 0.0)

    def has_ended() -> bool:
        follower = Follower(inference, byte_tokenizer(), 2)
        list(follower.new())
        return follower.ended

    found: list[bool] = []

    class Counting:
        def iteration(self, record: IterationRecord) -> None: ...

        def request(self, record: RequestRecord) -> None:
            found.append(has_ended())

        def busy(self, start_s: float, end_s: float) -> None: ...

    manager = BatchingManager(Orca(), Counting(), max_batch_size=1, max_waiting=1)
    model = HashModel()
    manager.serve(model, make_ledger("dynamic", model))
    manager.enqueue(inference)
    manager.drain()
    while not manager.drained:
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)
    assert found == [False]
    assert has_ended()
