"""Whatever happens in whatever order: hypothesis plays the clients, the model's mishaps and the
operator against a manager, step by step, and looks at it after every one."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from engine.inference import DrainingError, Inference, OverloadedError
from tests.batching.modes import DYNAMIC_MODES, MODES
from tests.batching.virtual import TICK_S, World, check_closed

TOKENS = st.integers(0, 12)


class Life(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize(
        mode=st.sampled_from(MODES + DYNAMIC_MODES),
        max_batch_size=st.integers(2, 6),
        max_waiting=st.integers(8, 16),
        first=st.integers(0, 8),
        wait_ticks=st.integers(0, 5),
        budget=st.integers(30, 240),
    )
    def begin(self, mode, max_batch_size, max_waiting, first, wait_ticks, budget) -> None:  # type: ignore[no-untyped-def]
        self.world = World(
            mode,
            max_batch_size=max_batch_size,
            max_waiting=max_waiting,
            max_wait_s=wait_ticks * TICK_S,
            budget=budget,
        )
        for seed in range(first):
            self.world.submit([seed] * (1 + seed), 20 - seed, seed)
        self.stopping = self.troubled = False
        self.wake_s: float | None = None

    @rule(
        target=requests,
        burst=st.lists(
            st.tuples(st.lists(TOKENS, min_size=1, max_size=10), st.integers(1, 20)),
            min_size=1,
            max_size=5,
        ),
        end_ids=st.frozensets(TOKENS, max_size=1),
        streaming=st.booleans(),
    )
    def arrive(self, burst, end_ids, streaming) -> Inference | None:  # type: ignore[no-untyped-def]
        last = None
        for seed, (prompt, max_tokens) in enumerate(burst):
            try:
                last = self.world.submit(
                    prompt, max_tokens, seed, end_ids=end_ids, streaming=streaming
                )
            except DrainingError:
                assert self.stopping
            except OverloadedError:
                manager = self.world.manager
                assert manager.counts["waiting"] >= manager.queue.max_waiting  # more: preempted
        return last

    @rule(inference=requests, end=st.sampled_from(["cancelled", "stop"]))
    def depart(self, inference, end) -> None:  # type: ignore[no-untyped-def]
        if inference is not None:
            self.world.manager.cancel(inference, end)
            inference.end_ids = frozenset() if end == "stop" else inference.end_ids

    @rule(steps=st.integers(1, 12))
    def iterate(self, steps: int) -> None:
        for _ in range(steps):
            self.wake_s = self.world.step()

    @rule(ticks=st.integers(0, 10))
    def let_time_pass(self, ticks: int) -> None:
        self.world.now_s = max(self.world.now_s + ticks * TICK_S, self.wake_s or 0.0)

    @rule(ahead=st.integers(1, 3))
    def break_an_iteration(self, ahead: int) -> None:
        self.troubled = True
        self.world.model.fail_on = {self.world.model.iterations + ahead}

    @rule(taken=st.integers(0, 2))
    def run_short_of_memory(self, taken: int) -> None:
        running = self.world.manager.counts["running"]
        self.world.model.max_rows = max(1, running - taken) if taken else None
        self.iterate(steps=2)

    @rule(graceful=st.booleans())
    def stop(self, graceful: bool) -> None:
        if len(self.world.submitted) < 15:  # or most lives would be short
            return
        self.stopping = True
        if graceful:
            self.world.manager.drain()
        else:
            self.troubled = True
            self.world.manager.abort("the operator was in a hurry")

    @invariant()
    def nobody_is_lost_and_nobody_ends_twice(self) -> None:
        world = self.world
        records = [i.record for i in world.submitted if i.record is not None]
        assert sorted(map(id, records)) == sorted(map(id, world.books.requests))
        here = world.manager.counts["waiting"] + world.manager.counts["running"]
        assert len(world.submitted) - len(records) <= here

    @invariant()
    def memory_stays_within_the_budget_and_belongs_to_residents(self) -> None:
        memory = self.world.memory
        assert 0 <= memory.used <= memory.num_blocks
        assert (memory.used > 0) == (self.world.manager.counts["running"] > 0)
        assert self.world.model.breaches == []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.model.max_rows = None
        self.world.run()
        check_closed(self.world)
        if not self.troubled:
            assert all(inference.end != "failed" for inference in self.world.submitted)


TestLife = Life.TestCase
TestLife.settings = settings(stateful_step_count=40, deadline=None)


@pytest.mark.long
@pytest.mark.timeout(900)
class TestLongLife(Life.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=1000, stateful_step_count=80, deadline=None)
