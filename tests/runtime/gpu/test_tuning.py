"""The launch of the decode kernel is measured once for a shape, and the same for every batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kernels.gpu.attention
import runtime.gpu.tuning
from kernels.gpu.attention import CANDIDATES, Launch
from runtime.cache import KVShape
from runtime.gpu.tuning import attention, chosen, decode_launch
from tests.kernels.launches import launched

CPU = torch.device("cpu")
SHAPE = KVShape(3, 1, 16, torch.float32, CPU)


def test_the_fastest_launch_is_chosen_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime.gpu.tuning, "POOL_BYTES", 1)
    times_s = iter([3.0, 2.0, *[4.0] * len(CANDIDATES)])

    def seconds(run: Callable[[], object], device: torch.device) -> float:
        assert device == CPU
        run()
        return next(times_s)

    with launched() as names:
        assert chosen(2, SHAPE, seconds) == CANDIDATES[1]
    assert names == ["decode", "merge"] * len(CANDIDATES)
    with launched() as names:
        assert chosen(2, SHAPE, seconds) == CANDIDATES[1]
    assert names == []


def test_another_kernel_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    times_s = iter([2.0, 1.0, *[4.0] * (len(CANDIDATES) - 2)])
    assert chosen(2, SHAPE, lambda *_: next(times_s)) == CANDIDATES[1]
    changed = tmp_path / "paged_triton.py"
    changed.write_text("changed")
    monkeypatch.setattr(kernels.gpu.attention, "__file__", str(changed))
    assert chosen(2, SHAPE, lambda *_: 1.0) == CANDIDATES[0]


def test_what_is_timed_reads_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.gpu.tuning, "POOL_BYTES", 1)
    read: list[torch.Tensor] = []
    monkeypatch.setattr(kernels.gpu.attention, "attend", lambda *of, **_: read.extend(of[:5]))
    attention(2, SHAPE, Launch())()
    assert all(float(numbers.std()) > 0.1 for numbers in read)


def test_nothing_is_measured_on_a_cpu() -> None:
    with launched() as names:
        assert decode_launch(2, SHAPE) == Launch()
    assert names == []
