"""The history: every iteration row by row, what its rows add up to, and how it is read."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.bookkeeping import planned_record
from engine.inference import Inference
from records import Arrived, Ended, History, IterationRecord, Row
from requested import Sampling
from telemetry.stats import Stats
from tests.batching.modes import DYNAMIC_MODES, MODES, Mode, every_mode_and_policy
from tests.batching.test_any_workload import LIMITS, TICK_S, WORKLOADS, Client, play
from tests.batching.virtual import World, check_closed
from tests.examples import examples

SMALL = {"max_batch_size": 4, "budget": 48, "block_tokens": 1, "lookahead": 1}


def one(ticks: int, prompt: int, max_tokens: int) -> Client:
    return Client(ticks * TICK_S, [0] * prompt, max_tokens, 0, frozenset(), None, False)


# under `tgi`, one is preempted while an iteration in which it is paused is in flight
PREEMPTED_IN_FLIGHT = [
    *[one(0, 1, 1)] * 7, one(0, 1, 9), one(0, 1, 6), one(0, 1, 1), one(6, 1, 6), one(7, 4, 5),
    one(7, 20, 3),
]  # fmt: skip


def iterations(world: World) -> list[IterationRecord]:
    events = world.manager.history.since(0).events
    return [event for event in events if isinstance(event, IterationRecord)]


def kinds(world: World, request: int) -> list[str]:
    return [row.kind for done in iterations(world) for row in done.rows if row.request == request]


@every_mode_and_policy
@examples(12)
@given(
    workload=WORKLOADS,
    limits=LIMITS,
    failing=st.frozensets(st.integers(1, 30), max_size=2),
)
def test_the_sums_over_rows_equal_stats(
    mode: Mode, workload: list[Client], limits: dict[str, int], failing: frozenset[int]
) -> None:
    stats = Stats(0.0)
    world = World(mode, **limits, also=stats)  # type: ignore[arg-type]
    world.model.fail_on = failing
    play(world, workload)
    check_closed(world)
    new = world.manager.history.since(0)
    assert new.missed == 0
    done = iterations(world)
    assert done == world.books.iterations
    batches = []
    for record in done:
        computed = [row for row in record.rows if row.kind not in ("held", "paused")]
        assert all(row.num_tokens > 0 for row in computed)
        assert sum(row.num_tokens for row in record.rows) == record.num_tokens
        batches.append(sum(row.kind != "paused" for row in record.rows))
        assert (
            record.used_blocks + record.cached_blocks + record.free_blocks
            == world.memory.num_blocks
        )
        assert record.used_blocks > 0
    summary = stats.summary(world.now_s, world.manager)
    assert summary["batch-size"]["histogram"] == {
        str(rows): times for rows, times in sorted(Counter(batches).items())
    }
    assert summary["total-tokens-handled"] == sum(i.num_generated for i in done)
    positions = sum(i.padding + sum(row.num_tokens for row in i.rows) for i in done)
    assert summary["padding-share"] == (
        sum(i.padding for i in done) / positions if positions else None
    )
    ended = [event for event in new.events if isinstance(event, Ended)]
    assert [event.record for event in ended] == world.books.requests
    assert summary["preemptions"] == sum(event.record.num_preemptions for event in ended)
    preempted = Counter(id for record in done for id in record.preempted)
    for event in ended:  # one that never ran again may have been dropped in no iteration at all
        assert preempted[event.request] <= event.record.num_preemptions
        if not failing and event.record.end in ("length", "stop"):
            assert preempted[event.request] == event.record.num_preemptions
    arrived = [event.request for event in new.events if isinstance(event, Arrived)]
    assert sorted(arrived) == sorted(event.request for event in ended)


@every_mode_and_policy
@examples(12)
@given(workload=WORKLOADS, limits=LIMITS)
@example(workload=PREEMPTED_IN_FLIGHT, limits=SMALL)
def test_a_slot_is_one_requests_from_its_admission_until_it_leaves(
    mode: Mode, workload: list[Client], limits: dict[str, int]
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    play(world, workload)
    slots: dict[int, int] = {}
    for record in iterations(world):
        for id in record.preempted:
            slots.pop(id, None)
        here = {row.request: row.slot for row in record.rows}
        assert len(set(here.values())) == len(here)
        assert max(here.values()) < world.manager.max_resident
        for id, slot in here.items():
            assert slots.setdefault(id, slot) == slot


def test_rows_say_what_was_done_for_each_request() -> None:
    world = World(MODES[1])  # a static batch, which answers as a whole
    world.submit([1, 2, 3], 1)
    world.submit([1, 2], 3)
    world.run()
    first, *later = iterations(world)
    assert list(first.rows) == [Row(0, 0, 3, "prefill"), Row(1, 1, 2, "prefill")]
    assert first.padding == 1
    for record in later:
        assert list(record.rows) == [Row(1, 1, 1, "decode"), Row(0, 0, 0, "held")]
        assert record.padding == 1


def test_a_prompt_in_parts_is_told_from_a_whole_one_and_from_decodes() -> None:
    world = World(next(m for m in DYNAMIC_MODES if m.name == "stall-free, reserve"))
    world.submit([1] * 25, 3)  # the policy computes 10 tokens at a time
    world.submit([1] * 4, 2, at_s=1.0)
    world.run()
    assert kinds(world, 0) == ["chunk", "chunk", "chunk", "decode", "decode"]
    assert kinds(world, 1)[-2:] == ["prefill", "decode"]


def test_the_lowest_free_slot_is_given_first() -> None:
    world = World(MODES[3])
    for max_tokens in (8, 1, 1, 8):
        world.submit([1, 2], max_tokens)
    world.step()
    world.submit([3], 4)
    world.step()
    assert [(row.request, row.slot) for row in iterations(world)[1].rows] == [
        (0, 0),
        (3, 3),
        (4, 1),
    ]


def arrival(number: int) -> Arrived:
    return Arrived(number, float(number), 1, 1, "immediate")


@given(st.lists(st.one_of(st.none(), st.integers(1, 9)), max_size=60))
def test_a_reader_gets_every_event_once_or_is_told_how_many_it_missed(
    happens: list[int | None],
) -> None:
    """A number adds so many events, None reads."""
    history = History(2**16)  # so large a batch that few iterations are kept
    assert history.most == 8
    added = seen = missed = number = 0
    for count in [*happens, None]:
        if count is not None:
            for _ in range(count):
                history.add(arrival(added))
                added += 1
            continue
        new = history.since(number)
        assert [e.request for e in new.events if isinstance(e, Arrived)] == list(
            range(number + new.missed, added)
        )
        assert not new.missed or len(new.events) == history.most - 1
        seen += len(new.events)
        missed += new.missed
        number = new.next
    assert seen + missed == added == number


class Compared(Inference):
    """Counts how often it is compared with another request."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return self is other

    __hash__ = Inference.__hash__


def test_no_request_is_compared_with_another_when_many_are_admitted_at_once() -> None:
    new = [Compared([1, 2, 3], 4, Sampling(), 0.0) for _ in range(100)]
    for id, inference in enumerate(new):
        inference.id = inference.slot = id
    rows = [(inference, 3 - id % 2) for id, inference in enumerate(new)]
    resident = {inference.id: inference for inference in new}
    record = planned_record(rows, [], resident, new, 0, 0, Ledger(1000))
    assert [row.kind for row in record.rows] == ["prefill", "chunk"] * 50
    assert Compared.comparisons == 0
