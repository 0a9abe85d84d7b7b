"""The history: what a row says, and how rows are read; their sums are in `test_any_workload.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from records import Arrived, History, Row
from tests.batching.modes import DYNAMIC_MODES, MODES
from tests.batching.virtual import World


def test_rows_say_what_was_done_for_each_request() -> None:
    world = World(MODES[1])  # a static batch, which answers as a whole
    short, long = world.submit([1, 2, 3], 1), world.submit([1, 2], 3)
    world.run()
    assert short.record is not None
    assert long.record is not None
    assert short.record.end_s == long.record.end_s > (short.record.last_token_s or 0.0)
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
