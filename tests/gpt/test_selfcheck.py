"""The kernel is used where it computes what plain torch does, and nowhere else."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpt.gpu.selfcheck import Heads, differs, why_not
from kernels.paged import attend_rectangle

CPU = torch.device("cpu")
SMALL = Heads(heads=1, kv_heads=1, head_dim=16, block_tokens=16, dtype="float32")


def by_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    tables: Tensor,
    tiles: Tensor,
    singles: int,
    longest: int,
) -> Tensor:
    found = torch.zeros_like(q)
    for (first, count, length), table in zip(rows.tolist(), tables, strict=True):
        at = torch.arange(length - count, length)[None]
        mine = slice(first, first + count)
        found[mine] = attend_rectangle(q[None, mine], keys, values, table[None], at)[0]
    return found


def test_a_kernel_with_the_same_results_passes() -> None:
    assert differs(by_torch, 16, SMALL, CPU) is None


@pytest.mark.parametrize("wrong", ["off by a little", "not a number", "a row left out"])
def test_a_kernel_that_differs_is_reported_with_the_place(wrong: str) -> None:
    def attend(q: Tensor, *others: Tensor, **_: object) -> Tensor:
        found = by_torch(q, *others)  # type: ignore[call-arg,arg-type]
        if wrong == "off by a little":
            found += 0.01
        elif wrong == "not a number":
            found[-1] = torch.nan
        else:
            found[0] = 0
        return found

    found = differs(attend, 16, SMALL, CPU)  # type: ignore[arg-type]
    assert found is not None
    assert "differ by" in found


def test_the_comparison_runs_once_and_its_reason_is_kept_and_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A CPU without the interpreter is a device on which Triton does not run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    caplog.set_level(logging.WARNING)
    found = why_not(CPU, SMALL)
    assert found is not None
    assert f"but torch's slower operators: {found}" in caplog.text
    (kept,) = tmp_path.rglob("paged-*.json")
    assert json.loads(kept.read_text())["reason"] == found
    caplog.clear()
    assert why_not(CPU, SMALL) == found
    assert "(once)" not in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_interpreted_kernel_passes(
    dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    heads = Heads(heads=4, kv_heads=2, head_dim=16, block_tokens=16, dtype=dtype)
    assert why_not(CPU, heads) is None
