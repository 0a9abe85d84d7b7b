"""The launch of the decode kernel is measured once for a shape, and the same for every batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gpt.gpu.tuning
from gpt.cache import KVShape
from gpt.gpu.tuning import chosen, decode_launch
from kernels.paged_triton import CANDIDATES, Launch
from tests.kernels.launches import launched

CPU = torch.device("cpu")
SHAPE = KVShape(3, 1, 16, torch.float32, CPU)


def test_the_fastest_launch_is_chosen_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpt.gpu.tuning, "POOL_BYTES", 1)
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


def test_nothing_is_measured_on_a_cpu() -> None:
    with launched() as names:
        assert decode_launch(2, SHAPE) == Launch()
    assert names == []
