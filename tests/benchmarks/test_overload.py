"""The benchmark of an overloaded server: a small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import overload
from benchmarks.harness import report as harness


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
    first, second = json.loads((tmp_path / "overload.json").read_text())["results"]
    assert (first["mode"], first["side"], second["side"]) == ("dynamic", "1.2", "3.0")
    assert len(first["tokens_per_s"]) == len(second["tokens_per_s"]) == 2
    assert min(*first["tokens_per_s"], *second["tokens_per_s"]) > 0
    assert "| dynamic | 3.0 |" in capsys.readouterr().out
