"""Layers of a shard, whatever computes their part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from models.part import Part
from models.weights.rounding import quantise_q8_0
from runtime.linear.blocks import BlockLinear
from runtime.shards import SummedLinear, in_order, join
from tests.support.process import free_port


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


SHARDS = 3


def parts() -> list[Tensor]:
    return [torch.randn(40, 48, generator=torch.Generator().manual_seed(r)) for r in range(SHARDS)]


def add(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    join(f"127.0.0.1:{port}", Part(rank, SHARDS), torch.device("cpu"))
    own = parts()[rank]
    together = in_order(own.clone())
    one_by_one = torch.cat([in_order(row.clone()) for row in own.split(1)])
    torch.save((together, one_by_one), f"{out}-{rank}")
    dist.destroy_process_group()  # gloo's threads may abort a process that ends beside them


def test_a_rows_sum_over_three_shards_is_the_same_in_any_batch_and_on_every_rank(
    tmp_path: Path,
) -> None:
    spawn(add, (free_port(), str(tmp_path / "sum")), nprocs=SHARDS)  # type: ignore[no-untyped-call]
    first, second, third = parts()
    expected = (first + second) + third
    for rank in range(SHARDS):
        for found in torch.load(tmp_path / f"sum-{rank}"):
            assert torch.equal(found, expected)
