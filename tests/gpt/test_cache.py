"""The KV budget closes: what handles hold returns with their last reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.cache import KVBudget, KVShape, RaggedMemory, RectangleMemory
from seams import Need, OutOfMemoryError


class Owner:
    pass


@given(st.lists(st.integers(0, 60), max_size=30), st.randoms())
def test_used_is_what_living_owners_took(sizes, random) -> None:  # type: ignore[no-untyped-def]
    budget = KVBudget(200)
    alive: list[tuple[Owner, int]] = []
    for size in sizes:
        owner = Owner()
        if budget.used + size > 200:
            with pytest.raises(OutOfMemoryError, match="--kv-memory"):
                budget.take(size, owner)
        else:
            budget.take(size, owner)
            alive.append((owner, size))
        del owner
        if alive and random.random() < 0.5:
            alive.pop(random.randrange(len(alive)))
        assert budget.used == sum(size for _, size in alive)
    alive.clear()
    assert budget.used == 0


def test_a_rectangle_costs_its_padding_and_a_pack_does_not() -> None:
    needs = [Need(10, 5), Need(2, 50)]
    assert RectangleMemory(1000).cost(needs) == 2 * (10 + 50)
    assert RaggedMemory(1000).cost(needs) == 15 + 52


def test_bytes_of_a_token_are_those_of_the_published_shape() -> None:
    shape = KVShape(24, 16, 64, torch.bfloat16, torch.device("cpu"))
    assert shape.token_bytes == 98_304  # gpt2-medium: 2 x 24 layers x 1024 x 2 bytes
