"""The benchmark of an overloaded server: which ratio is certain enough, and a small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness import report as harness
from benchmarks.harness.turns import ratio
from benchmarks.overload import __main__ as overload


def test_a_ratio_is_certain_within_three_percent() -> None:
    assert overload.narrow(ratio([100.0, 101.0, 99.0, 100.0], [100.0, 100.0, 100.0, 100.0]))
    assert not overload.narrow(ratio([100.0, 120.0, 90.0, 100.0], [100.0, 100.0, 100.0, 100.0]))


def test_it_compares_loads_beyond_a_modes_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overload, "RUN_S", 0.6)
    monkeypatch.setattr(overload, "SETTLE_S", 0.1)
    monkeypatch.setattr(overload, "KNEE_S", 0.6)
    monkeypatch.setattr(harness, "QUIET_CORES", 99.0)  # other tests run beside it
    overload.main(
        ["--modes", "dynamic", "--loads", "1.2", "3", "--rounds", "2", "--out", str(tmp_path)]
    )
    report = json.loads((tmp_path / "overload.json").read_text())
    dynamic = report["overload"]["dynamic"]
    assert dynamic["loads"] == pytest.approx([1.2, 3])
    assert [len(rounds) for rounds in dynamic["tokens_per_s"]] == [2, 2]
    assert all(speed > 0 for rounds in dynamic["tokens_per_s"] for speed in rounds)
    assert "| dynamic | 3.0 |" in capsys.readouterr().out
