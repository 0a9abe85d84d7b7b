"""Rows that receive several tokens in one iteration, since a constraint forces some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference
from records import IterationRecord
from requested import Constraint, Sampling
from tests.batching.failures.test_late_results import LATE
from tests.batching.modes import DYNAMIC_MODES, Mode, every_mode_and_policy, every_policy
from tests.batching.test_any_workload import Client, play, workloads
from tests.batching.virtual import World, check_closed
from tests.examples import examples
from tests.support.hashed import MOST_FORCED, forced_after, reference, reference_logprob

JSON = Constraint("json_schema", "{}")


@every_mode_and_policy
@examples(20)
@given(
    workload=workloads(constraint=st.sampled_from([None, JSON])),
    limits=LATE,
    failing=st.frozensets(st.integers(1, 30), max_size=2),
)
def test_several_tokens_at_once_change_no_token_and_the_books_close(
    mode: Mode, workload: list[Client], limits: dict[str, int], failing: frozenset[int]
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    world.model.fail_on = failing
    play(world, workload)
    check_closed(world)
    ended = [i for i in world.submitted if i.record and i.record.end in ("length", "stop")]
    assert failing or len(ended) >= sum(client.patience_s is None for client in workload)


@every_policy
@pytest.mark.parametrize("lookahead", [0, 1])
def test_an_iteration_yields_what_is_forced_behind_the_token_it_draws(
    mode: Mode, lookahead: int
) -> None:
    world = World(mode, lookahead=lookahead)
    inference = world.submit([1, 2, 3], 40, constraint=JSON)
    world.run()
    check_closed(world)
    ids, yielded = inference.ids, []
    at = 3
    while at < len(ids):
        yielded.append(min(1 + forced_after(ids[: at + 1]), len(ids) - at))
        at += yielded[-1]
    assert max(yielded) > 1
    assert [record.num_generated for record in world.books.iterations if record.num_drawn] == (
        yielded
    )


def test_a_row_with_a_constraint_waits_for_its_tokens_and_others_do_not() -> None:
    world = World(DYNAMIC_MODES[0], lookahead=1)
    constrained, free = world.submit([1, 2], 30, constraint=JSON), world.submit([3, 4], 30)
    world.run()
    check_closed(world)
    assert world.model.most_in_flight == 2
    rows = [{row.request for row in i.rows if row.num_tokens} for i in iterations(world)]
    both = [{constrained.id, free.id}, {free.id}]
    assert rows[:4] == [*both, *both]


def test_tokens_behind_an_end_token_are_dropped_with_their_logprobs() -> None:
    alone = reference([5, 6], 40, seed=0, vocab_size=13)
    # the first token that has others forced behind it ends the request
    at = next(i for i in range(2, 40) if forced_after([5, 6, *alone[: i + 1]]) > 1)
    sampling = Sampling(seed=0, constraint=JSON, logprobs=0)
    inference = Inference([5, 6], 40, sampling, 0.0, end_ids=frozenset([alone[at]]))
    world = World(DYNAMIC_MODES[0])
    world.manager.enqueue(inference)
    world.submitted.append(inference)
    world.run()
    check_closed(world)
    first = alone.index(alone[at])
    assert (inference.end, inference.ids[2:]) == ("stop", alone[: first + 1])
    assert [score.logprob for score in inference.logprobs] == [
        reference_logprob([5, 6, *alone[:i]], token, 13)
        for i, token in enumerate(inference.ids[2:])
    ]


@pytest.mark.parametrize("max_tokens", range(1, 2 * MOST_FORCED + 4))
def test_no_more_than_max_tokens_are_received(max_tokens: int) -> None:
    world = World(DYNAMIC_MODES[0])
    inference = world.submit([7, 7, 7], max_tokens, constraint=JSON)
    world.run()
    check_closed(world)
    assert (inference.end, len(inference.ids)) == ("length", 3 + max_tokens)
    assert world.books.requests[0].generated == max_tokens


def test_forced_tokens_are_computed_as_decodes() -> None:
    world = World(DYNAMIC_MODES[0])
    inference = world.submit([1, 2, 3], 40, constraint=JSON)
    world.run()
    rows = [row for i in iterations(world) for row in i.rows if row.request == inference.id]
    assert rows[0].kind == "prefill"
    assert {row.kind for row in rows[1:]} == {"decode"}
    assert max(row.num_tokens for row in rows[1:]) > 1


def iterations(world: World) -> list[IterationRecord]:
    events = world.manager.history.since(0).events
    return [event for event in events if isinstance(event, IterationRecord)]
