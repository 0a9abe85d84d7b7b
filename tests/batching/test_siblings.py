"""Choices of one prompt compute it once, and none waits for ever or is overtaken for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference, new_group
from generate import dynamic
from scheduling.registry import IN_ORDER
from seams import Policy
from tests.batching.modes import POLICIES, Mode, every
from tests.batching.virtual import TICK_S, World, check_closed
from tests.examples import examples

BLOCK = 4
LEDGERS = {
    f"{admission}, {name}": partial(Ledger, growth_tokens=growth, prefix_caching=caching)
    for (admission, growth), (name, caching) in itertools.product(
        {"reserve": None, "optimistic": 3}.items(), {"shared": True, "choices alone": False}.items()
    )
}


def _made(make: Callable[[], Policy], _: float) -> Policy:
    return make()


MODES = [
    Mode(f"{name}, {ledger}", partial(_made, make), dynamic.lay_out, LEDGERS[ledger])
    for name, make in POLICIES.items()
    for ledger in LEDGERS
]
SOME = [mode for mode in MODES if mode.name.startswith(("orca", "stall-free", "tgi", "mlfq"))]
WORLDS = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 8),
        "budget": st.integers(48, 400),
        "lookahead": st.sampled_from([0, 1]),
    }
)


def world_of(mode: Mode, **options: Any) -> World:
    return World(mode, **{"block_tokens": BLOCK, **options})


def submit(world: World, prompt: list[int], max_tokens: int, choices: int) -> list[Inference]:
    group = new_group()
    return [world.submit(prompt, max_tokens, seed, group=group, user=1) for seed in range(choices)]


def computed_for_prompts(world: World) -> int:
    decoded = sum(record.generated - 1 for record in world.books.requests)
    return sum(record.num_tokens for record in world.books.iterations) - decoded


@every(MODES)
def test_eight_choices_compute_their_prompt_once_and_a_block_each(mode: Mode) -> None:
    for tokens, rows, lookahead in itertools.product((3, 32, 37), (3, 8), (0, 1)):
        world = world_of(mode, lookahead=lookahead, max_batch_size=rows)
        submit(world, list(range(tokens)), 5, 8)
        world.run()
        check_closed(world)
        assert computed_for_prompts(world) <= tokens + 7 * BLOCK


def test_without_prefix_caching_only_the_choices_of_one_call_share() -> None:
    world = world_of(next(mode for mode in MODES if mode.name == "orca, reserve, choices alone"))
    for _ in range(2):
        submit(world, list(range(32)), 5, 2)
    world.submit(list(range(32)), 5)
    world.run()
    check_closed(world)
    assert computed_for_prompts(world) == 2 * (32 + BLOCK) + 32


@every(SOME)
def test_where_the_first_choice_leaves_the_next_one_computes_the_rest(mode: Mode) -> None:
    for lookahead, steps in itertools.product((0, 1), range(5)):
        world = world_of(mode, lookahead=lookahead)
        first, *others = submit(world, list(range(37)), 5, 4)
        for _ in range(steps):
            world.step()
        world.manager.cancel(first)
        world.run()
        check_closed(world)
        assert [one.end for one in others] == ["length"] * 3


CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "at_s": st.integers(0, 30).map(lambda ticks: ticks * TICK_S),
            "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=20),
            "max_tokens": st.integers(1, 16),
            "choices": st.integers(1, 4),
            "patience_s": st.none() | st.integers(0, 20).map(lambda ticks: ticks * TICK_S),
        }
    ),
    min_size=1,
    max_size=6,
)


def play(world: World, calls: list[dict[str, Any]]) -> None:
    """The first choice of a call may leave."""
    events: list[tuple[float, Any]] = []
    for call in calls:
        taken: list[Inference] = []

        def arrive(call: dict[str, Any] = call, taken: list[Inference] = taken) -> None:
            taken += submit(world, call["prompt"], call["max_tokens"], call["choices"])

        def leave(taken: list[Inference] = taken) -> None:
            world.manager.cancel(taken[0])

        events.append((call["at_s"], arrive))
        if call["patience_s"] is not None:
            events.append((call["at_s"] + call["patience_s"], leave))
    world.run(events)
    check_closed(world)


@every(SOME)
@examples(20)
@given(calls=CALLS, limits=WORLDS)
def test_every_choice_gets_its_own_answer(
    mode: Mode, calls: list[dict[str, Any]], limits: dict[str, Any]
) -> None:
    play(world_of(mode, **limits), calls)


@every([mode for mode in SOME if mode.name.split(",")[0] in IN_ORDER and "reserve" in mode.name])
@examples(40)
@given(calls=CALLS, limits=WORLDS)
def test_nobody_is_overtaken_where_service_is_first_come_first_served(
    mode: Mode, calls: list[dict[str, Any]], limits: dict[str, Any]
) -> None:
    world = world_of(mode, **limits)
    play(world, calls)
    admitted_s = [one.admitted_s for one in world.submitted if one.admitted_s is not None]
    assert admitted_s == sorted(admitted_s)
