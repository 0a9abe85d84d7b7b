"""Layers of a shard: the sum over ranks, and a bias that is added once."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from models.networks import Part
from runtime.shards import SummedLinear, in_order, join
from tests.support.process import free_port

SHARDS = 3


def parts() -> list[Tensor]:
    return [torch.randn(40, 48, generator=torch.Generator().manual_seed(r)) for r in range(SHARDS)]


def add(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    join(f"127.0.0.1:{port}", Part(rank, SHARDS), torch.device("cpu"))
    own, layer = parts()[rank], nn.Linear(48, 48).requires_grad_(False)
    layer.weight.copy_(torch.eye(48))
    layer.bias.copy_(torch.arange(48.0))
    summed = SummedLinear(layer, in_order)
    together = summed(own)
    one_by_one = torch.cat([summed(row) for row in own.split(1)])
    torch.save((together, one_by_one), f"{out}-{rank}")
    dist.destroy_process_group()  # gloo's threads may abort a process that ends beside them


def test_a_rows_sum_over_three_shards_is_the_same_in_any_batch_and_on_every_rank(
    tmp_path: Path,
) -> None:
    spawn(add, (free_port(), str(tmp_path / "sum")), nprocs=SHARDS)  # type: ignore[no-untyped-call]
    first, second, third = parts()
    expected = (first + second) + third + torch.arange(48.0)
    for rank in range(SHARDS):
        for found in torch.load(tmp_path / f"sum-{rank}"):
            assert torch.equal(found, expected)
