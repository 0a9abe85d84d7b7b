"""The KV budget: what is asked for, and its arithmetic in the log."""

from __future__ import annotations

import weakref
from pathlib import Path

import psutil
import pytest
import torch

from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig
from runtime import budget
from runtime.budget import (
    asked_blocks,
    container_room_bytes,
    cpu_blocks,
    gpu_blocks,
    worst_activation_bytes,
)
from runtime.cache import KVPool, KVShape
from seams import LoadError

CPU = torch.device("cpu")
SHAPE = KVShape(24, 16, 64, torch.bfloat16, CPU)
BLOCK = 16 * 98_304  # gpt2-medium, as published: a token has 2 x 24 layers x 1024 x 2 bytes


@pytest.mark.parametrize(
    ("amount", "found"),
    [
        ("30000tokens", 1875),
        ("30001tokens", 1876),
        ("1.5GiB", 3 * 2**29 // BLOCK),
        ("500MB", 500_000_000 // BLOCK),
        *((a, "allowed: auto, or a number with one of B, KB") for a in ("2", "GiB", "2gib", "-1B")),
        ("1MB", "less than a block: 16 tokens of 98304 bytes"),
    ],
)
def test_an_amount_is_read_as_blocks_or_refused(amount: str, found: int | str) -> None:
    if isinstance(found, str):
        with pytest.raises(LoadError, match=found):
            asked_blocks(amount, SHAPE)
    else:
        assert asked_blocks(amount, SHAPE) == found


@pytest.mark.parametrize(
    ("rows", "context_blocks", "blocks"),
    [(3, 7, 21), (8, 20, 25), (8, 40, 40), (8, 75, 75), (8, 80, 75), (8, 4000, 75)],
)
def test_a_cpus_budget_is_what_the_batch_needs_or_a_quarter_or_one_context_up_to_three_quarters(
    rows: int, context_blocks: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 100 * BLOCK)
    assert cpu_blocks(SHAPE, rows, 16 * context_blocks) == blocks


def _group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    """A control group's files as the kernel writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cache}\n{names[2]} {cache}\n")


@pytest.mark.parametrize(
    ("groups", "own", "left"),
    [
        # the tightest above the process, less what is used and cannot be dropped
        ({"pod": (2, "1000", 900, 200), "pod/box": (2, "max", 300, 0)}, "0::/pod/box\n", 300),
        # within a container the path is the host's, and the mount shows the container's own group
        (
            {"memory": (1, "1000", 1200, 500)},
            "9:name=systemd:/\n4:cpu,memory:/docker/4\n0::/\n",
            300,
        ),
        *(({".": (2, limit, 1, 0)}, "0::/\n", None) for limit in ("max", "", "a lot")),
    ],
    ids=["version 2", "version 1", "no limit", "nothing", "words"],
)
def test_a_control_group_leaves_its_limit_less_what_is_used(
    groups: dict[str, tuple[int, str, int, int]], own: str, left: int | None, tmp_path: Path
) -> None:
    for name, group in groups.items():
        _group(tmp_path / name, *group)
    (tmp_path / "own").write_text(own)
    assert container_room_bytes(tmp_path, tmp_path / "own") == left
    assert container_room_bytes(tmp_path / "nowhere", tmp_path / "nowhere") is None


def test_the_machines_memory_bounds_the_budget_and_too_little_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 2**60)
    total = psutil.virtual_memory().total // BLOCK
    assert cpu_blocks(SHAPE, 10 * total, 16) <= total / 4
    monkeypatch.setattr(budget, "container_room_bytes", lambda: BLOCK)
    with pytest.raises(LoadError, match="0 blocks of 1572864 bytes; at least 1 is needed"):
        cpu_blocks(SHAPE, 1, 1024)


@pytest.mark.parametrize("most_rows", [8, 3], ids=["all rows fit", "the batch is halved"])
def test_what_the_worst_iteration_was_measured_with_is_free_for_the_pool(
    most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU whose free memory is what no pool takes."""
    config = GPTConfig(vocab_size=97, context=64, n_layer=2, n_head=2, n_embd=32)
    network = GPT(config).eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=False)
    rows, most, peak = 8, 8 * 4, 1000
    total = int(most * model.shape.block_bytes * 1.2)
    pools, created = weakref.WeakSet[KVPool](), KVPool.__init__

    def allocate(pool: KVPool, shape: KVShape, blocks: int) -> None:
        if blocks > most_rows * 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        created(pool, shape, blocks)
        pools.add(pool)

    def free(_: torch.device) -> tuple[int, int]:
        held = sum(pool.keys.untyped_storage().nbytes() for pool in pools)
        return total - held, total

    monkeypatch.setattr(KVPool, "__init__", allocate)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: peak)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    assert worst_activation_bytes(model, rows) == peak
    assert gpu_blocks(model.shape, rows, model.context, peak) == most
    tight = (total - peak) // 4  # beside other programs
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (tight, total))
    fitting = int(0.9 * (tight - peak)) // model.shape.block_bytes
    assert gpu_blocks(model.shape, rows, model.context, peak) == fitting < most
