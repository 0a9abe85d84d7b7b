"""The pool of keys and values, and the tables of the sequences in it."""

from __future__ import annotations

import torch

from runtime.cache import BlockTable, KVPool, KVShape

CPU = torch.device("cpu")


def test_bytes_of_a_token_are_those_of_the_published_shape() -> None:
    shape = KVShape(24, 16, 64, torch.bfloat16, CPU)
    assert shape.token_bytes == 98_304  # gpt2-medium: 2 x 24 layers x 1024 x 2 bytes
    pool = KVPool(shape, 3)
    assert pool.keys.nbytes + pool.values.nbytes == 3 * shape.block_bytes == 3 * 16 * 98_304


def test_a_table_that_grows_keeps_its_blocks_and_says_where_they_lie() -> None:
    table = BlockTable([5, 2])
    table.extend([9])
    assert table.blocks.tolist() == [5, 2, 9]
    assert table.address == table.blocks.ctypes.data
    assert table.slots(15, 34, 16).tolist() == [95, *range(32, 48), 144, 145]


def test_a_slot_is_the_place_of_a_position_in_its_block() -> None:
    pool = KVPool(KVShape(2, 3, 16, torch.float32, CPU), 4)
    keys, _ = pool.slots(1)
    keys[2 * 16 + 5] = 7.0
    assert (pool.keys[1, 2, 5] == 7.0).all()
