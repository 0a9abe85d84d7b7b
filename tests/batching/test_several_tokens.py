"""Rows that receive several tokens in one iteration, since drafts are accepted or a constraint
forces some. That they change no token is shown in `test_any_workload.py`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.speculation import FREE_ROWS
from requested import Constraint
from seams import Drafts
from tests.batching.modes import DYNAMIC_MODES, MODES, Mode, every
from tests.batching.virtual import World, check_closed
from tests.examples import examples
from tests.support.hashed import drafted_after, forced_after, reference

JSON = Constraint("json_schema", "{}")


def expected_advances(
    prompt: list[int], max_tokens: int, most: int, constraint: Constraint | None
) -> list[tuple[int, int]]:
    """(tokens received, drafts rejected) of each iteration of a request that is alone."""
    ids = [*prompt, *reference(prompt, max_tokens, seed=0, vocab_size=13)]
    advances, at, computed = list[tuple[int, int]](), len(prompt), 0
    while at < len(ids):
        decodes = computed and at == computed + 1
        drafts = drafted_after(ids[:at], min(most, len(ids) - at - 1) if decodes else 0)
        computed, end = at, at
        while end < at + drafts.accepted and not (constraint and forced_after(ids[: end + 1])):
            end += 1
        if end < at + drafts.accepted:  # the drafts end there, and none of them is wrong
            drafts = Drafts(end - at, end - at)
        computed += drafts.accepted
        end += 1 + (forced_after(ids[: end + 1]) if constraint else 0)
        advances.append((min(end, len(ids)) - at, drafts.computed - drafts.accepted))
        at = end
    return advances


@every(DYNAMIC_MODES[::5])
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("most", "constraint"), [(1, None), (4, None), (0, JSON), (4, JSON)])
def test_a_request_advances_by_its_accepted_drafts_one_token_and_what_that_forces(
    mode: Mode, lookahead: int, most: int, constraint: Constraint | None
) -> None:
    world = World(mode, lookahead=lookahead, speculate=most, block_tokens=64)
    inference = world.submit([1, 2, 3], 50, constraint=constraint)
    world.run()
    check_closed(world)
    expected = expected_advances([1, 2, 3], 50, most, constraint)
    records = [record for record in world.books.iterations if record.num_generated]
    assert [(r.num_generated, r.rejected_drafts) for r in records] == expected
    assert inference.rejected_drafts == sum(rejected for _, rejected in expected)
    assert inference.accepted_drafts == sum(r.accepted_drafts for r in records)
    if constraint is None:  # few tokens are drafted where many are forced
        assert inference.accepted_drafts == 50 - len(expected) > 0


def test_a_row_with_a_constraint_waits_for_its_tokens_and_others_do_not() -> None:
    world = World(DYNAMIC_MODES[0], lookahead=1)
    constrained, free = world.submit([1, 2], 30, constraint=JSON), world.submit([3, 4], 30)
    world.run()
    check_closed(world)
    assert world.model.most_in_flight == 2
    rows = [{row.request for row in i.rows if row.num_tokens} for i in world.iterations()]
    both = [{constrained.id, free.id}, {free.id}]
    assert rows[:4] == [*both, *both]


def test_there_are_no_drafts_where_the_batch_is_full_or_beside_deferred_requests() -> None:
    world = World(DYNAMIC_MODES[0], max_batch_size=FREE_ROWS, speculate=3)
    for seed in range(FREE_ROWS):
        world.submit([seed], 20 + seed, seed)
    world.run()
    world.submit([1], 20)
    world.submit([2], 5, service_class="deferred", stored=True)
    world.run()
    check_closed(world)
    done = world.books.iterations
    full = [record for record in done if record.batch_size == FREE_ROWS]
    beside = [record for record in done if record.with_deferred]
    assert full
    assert beside
    assert not any(record.num_drafts for record in (*full, *beside))
    assert any(record.num_drafts for record in done)


@pytest.mark.parametrize(("speculate", "constraint"), [(4, None), (0, JSON)])
def test_an_end_token_among_several_ends_the_request_there(
    speculate: int, constraint: Constraint | None
) -> None:
    """With its logprobs."""
    for start in range(1000):
        advances = [n for n, _ in expected_advances([start, 2], 30, speculate, constraint)]
        if max(advances) > 3:
            break
    tokens = reference([start, 2], 30, seed=0, vocab_size=13)
    run = next(i for i, received in enumerate(advances) if received > 3)
    end = tokens[sum(advances[:run]) + 1]  # the second token of this run, or its first place
    world = World(DYNAMIC_MODES[0], speculate=speculate)
    inference = world.submit([start, 2], 30, end_ids=[end], constraint=constraint, scored=True)
    world.run()
    check_closed(world)
    assert (inference.end, inference.ids[2:]) == ("stop", tokens[: tokens.index(end) + 1])


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
