"""Keys and values in one piece, a sequence's own or a row of a rectangle."""

from __future__ import annotations

import weakref

import torch

from gpt.cache import KVShape, RectangleKV, RectangleRow, SequenceKV

SMALL = KVShape(2, 3, 16, torch.float32, torch.device("cpu"))


def test_bytes_of_a_token_are_those_of_the_published_shape() -> None:
    shape = KVShape(24, 16, 64, torch.bfloat16, torch.device("cpu"))
    assert shape.token_bytes == 98_304  # gpt2-medium: 2 x 24 layers x 1024 x 2 bytes


def test_a_cache_that_grows_keeps_what_it_holds() -> None:
    kv = SequenceKV.empty(SMALL, 6)
    kv.keys.normal_()
    kv.values.normal_()
    longer = kv.longer(5)
    assert longer.capacity == 11
    assert torch.equal(longer.keys[:, :, :6], kv.keys)
    assert torch.equal(longer.values[:, :, :6], kv.values)


def test_the_geometry_of_a_row_is_where_its_heads_and_layers_lie() -> None:
    row = RectangleRow(RectangleKV(SMALL, 4, 7, masked=False), 2)
    for layer in range(2):
        for head in range(3):
            head_stride, layer_bytes, *addresses = row.geometry
            for at, tensor in zip(addresses, (row.keys, row.values), strict=True):
                expected = tensor[layer, head].data_ptr()
                assert at + layer * layer_bytes + head * head_stride * 4 == expected


def test_a_rectangle_lives_as_long_as_one_of_its_rows() -> None:
    rectangle = RectangleKV(SMALL, 3, 7, masked=False)
    rows = [RectangleRow(rectangle, index) for index in range(3)]
    alive = weakref.ref(rectangle)
    del rectangle
    while rows:
        assert alive() is not None
        rows.pop()
    assert alive() is None
