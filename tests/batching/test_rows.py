"""The history: what a row says, also of one that receives several tokens since drafts are accepted
or a constraint forces some, and how it is read; sums of rows are in `test_any_workload.py`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.lifecycle import Arrived, History
from seams import Constraint, Row
from tests.batching.modes import DYNAMIC_MODES, MODES, Mode, every_mode_and_policy
from tests.batching.virtual import World, check_closed
from tests.examples import examples
from tests.support.hashed import absorb, drafted, forced

JSON = Constraint("json_schema", "{}")


def test_rows_say_what_was_done_for_each_request() -> None:
    world = World(MODES[1])  # a static batch, which answers as a whole
    short, long = world.submit([1, 2, 3], 1), world.submit([1, 2], 3)
    world.run()
    assert short.record is not None
    assert long.record is not None
    assert short.record.end_s == long.record.end_s > (short.record.last_token_s or 0.0)
    first, *later = world.books.iterations
    assert list(first.rows) == [Row(0, 0, 3, "prefill"), Row(1, 1, 2, "prefill")]
    assert first.padding == 1
    for record in later:
        assert list(record.rows) == [Row(1, 1, 1, "decode"), Row(0, 0, 0, "held")]
        assert record.padding == 1


@every_mode_and_policy
def test_an_arrival_knows_how_many_tokens_of_prompts_were_computed_before_it(mode: Mode) -> None:
    """Not those of decodes, for a policy weighs a wait by the prompts that went ahead."""
    world = World(mode)
    prompts = [[1, 2, 3, 4, 5], [6, 7, 8], [9]]
    for prompt in prompts:
        world.submit(prompt, 6)
    world.run()
    late = world.submit([10, 11], 1)
    world.run()
    assert late.prefill_before == sum(map(len, prompts))


def test_a_prompt_in_parts_is_told_from_decodes() -> None:
    world = World(next(m for m in DYNAMIC_MODES if m.name == "stall-free, reserve"))
    world.submit([1] * 25, 3)  # the policy computes 10 tokens at a time
    world.run()
    kinds = [row.kind for record in world.books.iterations for row in record.rows]
    assert kinds == ["chunk", "chunk", "chunk", "decode", "decode"]


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


# --- several tokens -------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("most", "constraint"), [(1, None), (4, None), (0, JSON)])
def test_a_request_advances_by_its_accepted_drafts_one_token_and_what_that_forces(
    lookahead: int, most: int, constraint: Constraint | None
) -> None:
    world = World(MODES[3], lookahead=lookahead, speculate=most, block_tokens=64)
    inference = world.submit([1, 2, 3], 50, constraint=constraint)
    world.run()
    check_closed(world)
    at, end = 3, 53
    for record in (record for record in world.books.iterations if record.num_generated):
        known, newest = (absorb(0, inference.ids[:n]) for n in (at, at + 1))
        drafts = drafted(known, min(most, end - at - 1) if at > 3 else 0)
        more = forced(newest) if constraint else 0
        assert record.num_generated == min(1 + drafts.accepted + more, end - at)
        assert record.rejected_drafts == drafts.computed - drafts.accepted
        at += record.num_generated
    assert at == end


def test_a_row_with_a_constraint_waits_for_its_tokens_and_others_do_not() -> None:
    world = World(MODES[3], lookahead=1)
    constrained, free = world.submit([1, 2], 30, constraint=JSON), world.submit([3, 4], 30)
    world.run()
    check_closed(world)
    assert world.model.most_in_flight == 2
    rows = [{row.request for row in i.rows if row.num_tokens} for i in world.books.iterations]
    both = [{constrained.id, free.id}, {free.id}]
    assert rows[:4] == [*both, *both]


def test_there_are_no_drafts_beside_deferred_requests() -> None:
    world = World(MODES[3], speculate=3)
    world.submit([1], 20)
    world.submit([2], 5, service_class="deferred", stored=True)
    world.run()
    check_closed(world)
    assert {record.with_deferred for record in world.books.iterations if record.rows.accepted} == {
        False
    }


@examples(30)
@given(prompt=st.lists(st.integers(0, 12), min_size=1, max_size=9), speculate=st.integers(1, 5))
def test_a_prefix_hit_never_holds_a_rejected_draft(prompt: list[int], speculate: int) -> None:
    """The second request repeats the first and its answer: a block with a rejected draft in it
    would give other tokens."""
    sharing = replace(MODES[3], ledger=partial(Ledger, prefix_caching=True))
    world = World(sharing, speculate=speculate, block_tokens=2)
    first = world.submit(prompt, 24)
    world.run()
    second = world.submit(first.ids, 12)
    world.run()
    check_closed(world)
    assert second.cached_tokens == (len(first.ids) - 1) // 2 * 2
