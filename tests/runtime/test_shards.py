"""Layers of a shard, whatever computes their part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.weights.rounding import quantise_q8_0
from runtime.linear.blocks import BlockLinear
from runtime.shards import SummedLinear


def layer(kind: str, bias: Tensor | None) -> Any:
    plain = nn.Linear(32, 16, bias=bias is not None)
    if bias is not None:
        plain.bias = nn.Parameter(bias, requires_grad=False)
    if kind == "blocks":
        return BlockLinear.of("q8_0", quantise_q8_0(plain.weight.detach()), bias)
    return plain


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", ["float", "blocks"])
def test_a_bias_is_added_once_after_the_sum(
    kind: str, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    bias = torch.randn(16) if with_bias else None
    x, part = torch.randn(3, 32), layer(kind, bias)
    alone = part(x).detach()
    monkeypatch.setattr("torch.distributed.all_reduce", lambda y: y.mul_(2))  # two equal shards
    with torch.inference_mode():
        summed = SummedLinear(part)(x)
    once = 0 if bias is None else bias
    assert torch.allclose(summed, 2 * (alone - once) + once, atol=1e-5)
