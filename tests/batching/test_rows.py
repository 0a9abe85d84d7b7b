"""The history: what a row says, and how rows are read; their sums are in `test_any_workload.py`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from engine.iteration import Iteration, enter
from records import CHUNK, PREFILL, Arrived, History, IterationRecord, Row
from requested import Sampling
from tests.batching.modes import DYNAMIC_MODES, MODES
from tests.batching.virtual import World


def test_rows_say_what_was_done_for_each_request() -> None:
    world = World(MODES[1])  # a static batch, which answers as a whole
    world.submit([1, 2, 3], 1)
    world.submit([1, 2], 3)
    world.run()
    first, *later = world.iterations()
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
    assert world.kinds(0) == ["chunk", "chunk", "chunk", "decode", "decode"]
    assert world.kinds(1)[-2:] == ["prefill", "decode"]


def test_the_lowest_free_slot_is_given_first() -> None:
    world = World(MODES[3])
    for max_tokens in (8, 1, 1, 8):
        world.submit([1, 2], max_tokens)
    world.step()
    world.submit([3], 4)
    world.step()
    assert [(row.request, row.slot) for row in world.iterations()[1].rows] == [
        (0, 0),
        (3, 3),
        (4, 1),
    ]


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
                history.add(Arrived(added, 0.0, 1, 1, "immediate"))
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


def test_no_request_is_compared_with_another_when_many_are_admitted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compared(*_: object) -> bool:
        raise AssertionError("a search through all requests for each of them")

    monkeypatch.setattr(Inference, "__eq__", compared)
    new = [Inference([1, 2, 3], 4, Sampling(), 0.0) for _ in range(100)]
    for id, inference in enumerate(new):
        inference.id = inference.slot = id
    rows = [(inference, 3 - id % 2) for id, inference in enumerate(new)]
    batch, steps = enter(rows, [], 1, {}, {})
    failed = ValueError("never started")
    iteration = Iteration(0.0, IterationRecord(100, 0), batch, steps, range(100), (), failed)
    assert iteration.kinds(iteration.columns()) == bytes([PREFILL, CHUNK]) * 50
