"""The KV budget: what is asked for, and its arithmetic in the log."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil
import pytest
import torch

from gpt import budget
from gpt.budget import KVMemoryError, asked_tokens, cpu_tokens
from gpt.cache import KVShape
from gpt.container import container_room_bytes

SHAPE = KVShape(24, 16, 64, torch.bfloat16, torch.device("cpu"))  # 98,304 bytes a token


@pytest.mark.parametrize(
    ("amount", "tokens"),
    [
        ("30000tokens", 30_000),
        ("2GiB", 2 * 2**30 // 98_304),
        ("1.5GiB", 3 * 2**29 // 98_304),
        ("500MB", 500_000_000 // 98_304),
        ("9830400B", 100),
    ],
)
def test_an_amount_is_read_as_tokens_and_told(
    amount: str, tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert asked_tokens(amount, SHAPE) == tokens
    assert f"--kv-memory {amount}, at 98304 bytes a token: {tokens} tokens" in caplog.text


@pytest.mark.parametrize("amount", ["2", "GiB", "2gib", "-1GiB", "1e9B", "two tokens", ""])
def test_an_amount_that_cannot_be_read_is_told_with_what_can(amount: str) -> None:
    with pytest.raises(KVMemoryError, match="allowed: auto, or a number with one of B, KB"):
        asked_tokens(amount, SHAPE)


def test_less_than_the_warm_up_takes_is_refused() -> None:
    with pytest.raises(KVMemoryError, match="holds 10 tokens of 98304 bytes; allowed: 16 tokens"):
        asked_tokens("1MB", SHAPE)


def test_a_cpu_gives_what_the_batch_limit_needs_or_a_quarter_of_what_is_available() -> None:
    assert cpu_tokens(SHAPE, 1000) == 1000
    total = psutil.virtual_memory().total // SHAPE.token_bytes
    assert cpu_tokens(SHAPE, 10 * total) <= total / 4


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
    room = 400 * SHAPE.token_bytes
    monkeypatch.setattr(budget, "container_room_bytes", lambda: room)
    assert cpu_tokens(SHAPE, 10_000) == 100
    assert "under the container's limit" in caplog.text
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 2**60)
    cpu_tokens(SHAPE, 1000)
    assert "available (on the machine)" in caplog.text


def test_a_container_too_small_for_the_warm_up_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "container_room_bytes", lambda: 4 * SHAPE.token_bytes)
    with pytest.raises(KVMemoryError, match="1 tokens of 98304 bytes, and 16 are the least"):
        cpu_tokens(SHAPE, 1000)
