"""The KV budget: what is asked for, and its arithmetic in the log."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import torch

from model import DynamicBatchingServerModel, ServerModel
from models.gpt2 import GPT, GPTConfig
from runtime import budget
from runtime.budget import (
    KVMemoryError,
    asked_blocks,
    cpu_blocks,
    gpu_blocks,
    worst_activation_bytes,
)
from runtime.cache import KVPool, KVShape
from runtime.container import container_room_bytes
from runtime.iteration import Started
from seams import Step

SHAPE = KVShape(24, 16, 64, torch.bfloat16, torch.device("cpu"))  # 98,304 bytes a token


BLOCK = 16 * 98_304


@pytest.mark.parametrize(
    ("amount", "blocks"),
    [
        ("30000tokens", 1875),
        ("30001tokens", 1876),
        ("2GiB", 2 * 2**30 // BLOCK),
        ("1.5GiB", 3 * 2**29 // BLOCK),
        ("500MB", 500_000_000 // BLOCK),
        ("157286400B", 100),
    ],
)
def test_an_amount_is_read_as_blocks_and_logged(
    amount: str, blocks: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert asked_blocks(amount, SHAPE) == blocks
    words = f"{blocks} blocks of 16 tokens x 98304 bytes = {16 * blocks} tokens"
    assert f"--kv-memory {amount}: {words}" in caplog.text


@pytest.mark.parametrize("amount", ["2", "GiB", "2gib", "-1GiB", "1e9B", "two tokens", ""])
def test_an_amount_that_cannot_be_read_is_refused_with_what_can(amount: str) -> None:
    with pytest.raises(KVMemoryError, match="allowed: auto, or a number with one of B, KB"):
        asked_blocks(amount, SHAPE)


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(KVMemoryError, match="less than a block: 16 tokens of 98304 bytes"):
        asked_blocks("1MB", SHAPE)


def test_a_cpus_budget_is_what_the_batch_limit_needs_or_a_quarter_of_the_memory() -> None:
    assert cpu_blocks(SHAPE, 10, 100) == 10 * 7
    total = psutil.virtual_memory().total // BLOCK
    assert cpu_blocks(SHAPE, 10 * total, 16) <= total / 4


@pytest.mark.parametrize(
    ("context_blocks", "blocks"), [(20, 25), (40, 40), (75, 75), (80, 75), (4000, 75)]
)
def test_one_sequence_of_the_context_gets_up_to_three_quarters_of_the_memory(
    context_blocks: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 100 * BLOCK)
    assert cpu_blocks(SHAPE, 8, 16 * context_blocks) == blocks


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


def _own(folder: Path, text: str) -> Path:
    path = folder / "own"
    path.write_text(text)
    return path


def test_a_container_leaves_its_limit_less_what_it_uses_and_cannot_drop(tmp_path: Path) -> None:
    _group(tmp_path, 2, "1000", used=700, cache=200)
    assert container_room_bytes(tmp_path, _own(tmp_path, "0::/\n")) == 500


def test_the_tightest_limit_above_a_process_counts(tmp_path: Path) -> None:
    _group(tmp_path / "pod", 2, "1000", used=900, cache=0)
    _group(tmp_path / "pod" / "box", 2, "max", used=300, cache=0)
    assert container_room_bytes(tmp_path, _own(tmp_path, "0::/pod/box\n")) == 100


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    """Within a container the path is the host's, and the mount shows the container's own group."""
    _group(tmp_path / "memory", 1, "1000", used=1200, cache=500)
    own = _own(tmp_path, "9:name=systemd:/\n4:cpu,memory:/docker/4bdc\n0::/\n")
    assert container_room_bytes(tmp_path, own) == 300


@pytest.mark.parametrize("limit", ["max", "", "a lot"])
def test_no_limit_leaves_no_figure(tmp_path: Path, limit: str) -> None:
    _group(tmp_path, 2, limit, used=1, cache=0)
    assert container_room_bytes(tmp_path, _own(tmp_path, "0::/\n")) is None
    assert container_room_bytes(tmp_path / "nowhere", tmp_path / "nowhere") is None


def test_a_containers_limit_makes_the_budget_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 400 * BLOCK)
    assert cpu_blocks(SHAPE, 8, 1024) == 100
    assert "batch limit x context = 8 x 1024 tokens = 512 blocks" in caplog.text
    assert "under the container's limit" in caplog.text
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 2**60)
    cpu_blocks(SHAPE, 1, 1024)
    assert "available (on the machine)" in caplog.text


def test_a_container_too_small_for_the_warm_up_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "container_room_bytes", lambda: BLOCK)
    with pytest.raises(KVMemoryError, match="0 blocks of 1572864 bytes; at least 1 is needed"):
        cpu_blocks(SHAPE, 1, 1024)


@pytest.mark.parametrize("kind", [DynamicBatchingServerModel, ServerModel])
@pytest.mark.parametrize("most_rows", [8, 3], ids=["all rows fit", "the batch is halved"])
def test_what_the_worst_iteration_was_measured_with_is_free_for_the_pool(
    kind: type[DynamicBatchingServerModel | ServerModel],
    most_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU whose free memory is what no pool takes."""
    config = GPTConfig(vocab_size=97, context=64, n_layer=2, n_head=2, n_embd=32)
    model = kind(GPT(config).eval().requires_grad_(False), torch.float32, "small", kernel=False)
    rows, most, peak = 8, 8 * 4, 1000
    total = int(most * model.shape.block_bytes * 1.2)
    pools = weakref.WeakSet[KVPool]()
    created = KVPool.__init__

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


def test_the_worst_iteration_is_measured_after_a_decode_chose_its_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = GPTConfig(vocab_size=97, context=64, n_layer=1, n_head=1, n_embd=16)
    network = GPT(config).eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=False)
    started: list[int] = []  # tokens of the first row
    before: list[int] = []
    start = model.start

    def noted(steps: Sequence[Step], released: Sequence[int]) -> Started:
        started.append(steps[0].num_tokens)
        return start(steps, released)

    monkeypatch.setattr(model, "start", noted)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: before.extend(started))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1)
    worst_activation_bytes(model, 2)
    assert before[-1] == 1
    assert started[len(before) :] == [64]
