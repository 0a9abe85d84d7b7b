"""Speculation in the engine: drafts change no token, whatever happens to their requests, and what
is computed of rejected ones is neither counted nor shared."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from engine.speculation import FREE_ROWS
from generate import dynamic
from records import IterationRecord, Row
from requested import Constraint, Sampling
from scheduling.policies.orca import Orca
from seams import Drafts
from tests.batching.failures.test_late_results import LATE
from tests.batching.modes import DYNAMIC_MODES, Mode, every_policy
from tests.batching.test_any_workload import Client, moments, play, workloads
from tests.batching.virtual import World, check_closed
from tests.examples import examples
from tests.support.hashed import drafted_after, forced_after, reference, reference_logprob

JSON = Constraint("json_schema", "{}")
SHARING = Mode(
    "dynamic, shared prefixes",
    lambda _: Orca(),
    dynamic.lay_out,
    partial(Ledger, prefix_caching=True),
)


@every_policy
@examples(40)
@given(
    workload=workloads(constraint=st.sampled_from([None, None, JSON])),
    limits=LATE,
    speculate=st.integers(1, 5),
    failing=st.frozensets(st.integers(1, 30), max_size=2),
    losing=st.frozensets(st.integers(1, 30), max_size=2),
    shortages=st.lists(
        st.tuples(moments(100), st.one_of(st.none(), st.integers(1, 6))), max_size=2
    ),
)
def test_drafts_change_no_token_and_the_books_close(
    mode: Mode,
    workload: list[Client],
    limits: dict[str, int],
    speculate: int,
    failing: frozenset[int],
    losing: frozenset[int],
    shortages: list[tuple[float, int | None]],
) -> None:
    world = World(mode, **limits, speculate=speculate)  # type: ignore[arg-type]
    model = world.model
    model.fail_on, model.lose_on = failing - losing, losing
    play(world, workload, [(s, partial(setattr, model, "max_rows", n)) for s, n in shortages])
    check_closed(world)
    for inference in world.submitted:
        assert inference.record is not None
        assert inference.record.accepted_drafts == inference.accepted_drafts


def expected_advances(
    prompt: list[int], max_tokens: int, most: int, *, constrained: bool = False
) -> list[tuple[int, int]]:
    """(tokens received, drafts rejected) of each iteration of a request that is alone."""
    ids = [*prompt, *reference(prompt, max_tokens, seed=0, vocab_size=13)]
    advances, at, computed = list[tuple[int, int]](), len(prompt), 0
    while at < len(ids):
        decodes = computed and at == computed + 1
        drafts = drafted_after(ids[:at], min(most, len(ids) - at - 1) if decodes else 0)
        computed, end = at, at
        while end < at + drafts.accepted and not (constrained and forced_after(ids[: end + 1])):
            end += 1
        if end < at + drafts.accepted:  # the drafts end there, and none of them is wrong
            drafts = Drafts(end - at, end - at)
        computed += drafts.accepted
        end += 1 + (forced_after(ids[: end + 1]) if constrained else 0)
        advances.append((min(end, len(ids)) - at, drafts.computed - drafts.accepted))
        at = end
    return advances


@every_policy
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("constraint", [None, JSON], ids=["free", "constrained"])
def test_a_request_advances_by_its_accepted_drafts_one_token_and_what_that_forces(
    mode: Mode, lookahead: int, most: int, constraint: Constraint | None
) -> None:
    world = World(mode, lookahead=lookahead, speculate=most, block_tokens=64)
    inference = world.submit([1, 2, 3], 50, constraint=constraint)
    world.run()
    check_closed(world)
    expected = expected_advances([1, 2, 3], 50, most, constrained=constraint is not None)
    records = [record for record in world.books.iterations if record.num_generated]
    assert [(r.num_generated, r.rejected_drafts) for r in records] == expected
    assert max(received for received, _ in expected) > 1
    assert inference.rejected_drafts == sum(rejected for _, rejected in expected)
    assert inference.accepted_drafts == sum(r.accepted_drafts for r in records)
    if constraint is None:  # few tokens are drafted where many are forced
        assert inference.accepted_drafts == 50 - len(expected) > 0
        assert inference.rejected_drafts > 0


def rows_of(record: IterationRecord) -> list[Row]:
    return list(record.rows)


def test_records_tell_accepted_and_rejected_drafts_row_by_row() -> None:
    world = World(DYNAMIC_MODES[0], speculate=3)
    free, constrained = world.submit([1, 2], 30), world.submit([3, 9], 60, constraint=JSON)
    world.run()
    check_closed(world)
    rows = [row for record in world.books.iterations for row in rows_of(record)]
    for inference in (free, constrained):
        assert inference.record is not None
        own = [row for row in rows if row.request == inference.id]
        assert sum(row.accepted for row in own) == inference.record.accepted_drafts > 0
        assert sum(row.rejected for row in own) == inference.record.rejected_drafts > 0
    own = [row for row in rows if row.request == free.id]
    assert all(row.num_tokens == 1 + row.accepted for row in own if row.kind == "decode")
    for record in world.books.iterations:
        assert record.num_drafts == sum(row.accepted + row.rejected for row in record.rows)
        assert record.num_positions == record.num_tokens + record.rejected_drafts
        assert record.padding == 0


def test_a_row_with_drafts_in_flight_waits_and_others_do_not() -> None:
    world = World(DYNAMIC_MODES[0], lookahead=1, speculate=2)
    world.submit([1, 2], 30)
    world.submit([3, 4], 30, constraint=JSON)
    world.submit([5, 6], 2)  # too few tokens for a draft: it is planned while it is in flight
    world.run()
    check_closed(world)  # the model checks that no row with drafts is in flight twice
    assert world.model.most_in_flight == 2


def test_no_row_has_drafts_where_the_batch_is_full() -> None:
    world = World(DYNAMIC_MODES[0], max_batch_size=FREE_ROWS, speculate=3)
    for seed in range(FREE_ROWS):
        world.submit([seed], 20, seed)
    world.run()
    check_closed(world)
    full = [r for r in world.books.iterations if r.batch_size == FREE_ROWS]
    assert full
    assert not any(record.num_drafts for record in full)


def test_there_are_no_drafts_beside_deferred_requests() -> None:
    world = World(DYNAMIC_MODES[0], speculate=3)
    world.submit([1], 20)
    deferred = world.submit([2], 5, service_class="deferred", stored=True)
    world.run()
    check_closed(world)
    beside = [r for r in world.books.iterations if r.with_deferred]
    assert beside
    assert not any(record.num_drafts for record in beside)
    assert any(record.num_drafts for record in world.books.iterations)
    assert deferred.end == "length"


@examples(30)
@given(
    max_tokens=st.integers(1, 30),
    speculate=st.integers(1, 8),
    block_tokens=st.sampled_from([1, 2, 4]),
)
def test_drafts_pass_neither_max_tokens_nor_the_blocks_of_their_request(
    max_tokens: int, speculate: int, block_tokens: int
) -> None:
    """The model refuses positions without a block; the budget is what one request reserves."""
    budget = -(-(3 + max_tokens) // block_tokens) * block_tokens
    world = World(DYNAMIC_MODES[0], budget=budget, block_tokens=block_tokens, speculate=speculate)
    inference = world.submit([1, 2, 3], max_tokens)
    world.run()
    check_closed(world)
    assert inference.generated == max_tokens


def test_an_end_token_among_accepted_drafts_ends_the_request_there() -> None:
    prompt = next(
        [start, 2]
        for start in range(1000)
        if max(received for received, _ in expected_advances([start, 2], 30, 4)) > 3
    )
    tokens = reference(prompt, 30, seed=0, vocab_size=13)
    advances = [received for received, _ in expected_advances(prompt, 30, 4)]
    run = next(i for i, received in enumerate(advances) if received > 3)
    inside = sum(advances[:run]) + 1  # the second token of this run
    sampling = Sampling(seed=0, logprobs=0)
    end = frozenset([tokens[inside]])
    if tokens.index(tokens[inside]) < inside:  # a token may come twice: end at its first place
        inside = tokens.index(tokens[inside])
    world = World(DYNAMIC_MODES[0], speculate=4)
    inference = Inference(prompt, 30, sampling, 0.0, end_ids=end)
    world.manager.enqueue(inference)
    world.submitted.append(inference)
    world.run()
    check_closed(world)
    assert (inference.end, inference.ids[2:]) == ("stop", tokens[: inside + 1])
    assert [score.logprob for score in inference.logprobs] == [
        reference_logprob([*prompt, *tokens[:i]], token, 13)
        for i, token in enumerate(inference.ids[2:])
    ]


@examples(30)
@given(prompt=st.lists(st.integers(0, 12), min_size=1, max_size=9), speculate=st.integers(1, 5))
def test_a_prefix_hit_never_holds_a_rejected_draft(prompt: list[int], speculate: int) -> None:
    """The second request repeats the first and its answer: a block with a rejected draft in it
    would give other tokens."""
    world = World(SHARING, speculate=speculate, block_tokens=2)
    first = world.submit(prompt, 24)
    world.run()
    second = world.submit(first.ids, 12)
    world.run()
    check_closed(world)
    assert second.cached_tokens == (len(first.ids) - 1) // 2 * 2
