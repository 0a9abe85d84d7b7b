"""Choices of one prompt compute it once, and none waits for ever or is overtaken for it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

from engine.blocks import Ledger
from engine.inference import new_group
from tests.batching.modes import DYNAMIC_MODES, MODES, Mode, every
from tests.batching.virtual import World, check_closed

BLOCK = 4
LEDGERS = [
    partial(Ledger, growth_tokens=growth, prefix_caching=caching)
    for growth, caching in itertools.product((None, 3), (True, False))
]


def submit(world: World, tokens: int, choices: int) -> None:
    group, prompt = new_group(), list(range(tokens))
    for seed in range(choices):
        world.submit(prompt, 5, seed, group=group, user=1)


def computed_for_prompts(world: World) -> int:
    decoded = sum(record.generated - 1 for record in world.books.requests)
    return sum(record.num_tokens for record in world.books.iterations) - decoded


@every([mode for mode in DYNAMIC_MODES if mode.name.endswith("reserve")])
def test_eight_choices_compute_their_prompt_once_and_a_block_each(mode: Mode) -> None:
    for ledger, tokens, rows, lookahead in itertools.product(LEDGERS, (3, 32, 37), (3, 8), (0, 1)):
        world = World(
            replace(mode, ledger=ledger),
            block_tokens=BLOCK,
            lookahead=lookahead,
            max_batch_size=rows,
        )
        submit(world, tokens, 8)
        world.run()
        check_closed(world)
        assert computed_for_prompts(world) <= tokens + 7 * BLOCK


def test_without_prefix_caching_only_the_choices_of_one_call_share() -> None:
    world = World(MODES[3], block_tokens=BLOCK)
    for _ in range(2):
        submit(world, 32, 2)
    world.submit(list(range(32)), 5)
    world.run()
    check_closed(world)
    assert computed_for_prompts(world) == 2 * (32 + BLOCK) + 32
