"""The benchmark of long prompts: what a stall is, and a small run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import long_prompts
from benchmarks.harness import report as harness
from benchmarks.long_prompts import Played


def test_a_stall_is_the_itl_to_that_of_the_same_tokens_without_the_prompts() -> None:
    alone_s = np.linspace(1.0, 2.0, 101)  # contexts grow
    alone_s[70] = 9.0  # something else ran on the machine
    beside_s = np.linspace(1.0, 2.0, 101)
    beside_s[60:90] *= 2.5
    played = Played(beside_s, slice(60, 90), 0.0, 1.0, alone_s)
    assert played.stall() == pytest.approx(2.5, rel=0.02)


def test_it_compares_orca_with_stall_free_and_draws_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "QUIET_CORES", 99.0)  # other tests run beside it
    monkeypatch.setattr(long_prompts, "UNDISTURBED", 4)
    monkeypatch.setattr(long_prompts, "CURVE", (24,))
    sizes = "--decodes 2 --decode-tokens 60 --prompts 2 --prompt-tokens 90 --output-tokens 2"
    curve = tmp_path / "curve.png"
    long_prompts.main(
        ["--rounds", "1", *sizes.split(), "--curve", str(curve), "--out", str(tmp_path)]
    )
    sides = json.loads((tmp_path / "long-prompts-embedded.json").read_text())["results"]
    assert [side["side"] for side in sides] == ["orca", "stall-free, auto", "24"]
    assert sides[0]["ratio"]["value"] == 1.0
    assert all(side["stall"][0] > 0 for side in sides)
    assert curve.stat().st_size > 0
    assert "| stall-free, auto |" in capsys.readouterr().out
