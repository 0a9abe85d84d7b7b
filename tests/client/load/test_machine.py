"""What a report says it was measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.load.machine import machine
from client.load.servers.stats import described, note_of


@pytest.mark.parametrize(
    ("script", "gpus"),
    [("echo A; echo B", ["A", "B"]), ("echo 'no devices were found'; exit 6", None), ("", [])],
)
def test_the_clients_gpus_are_those_that_the_driver_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, gpus: list[str] | None
) -> None:
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine()["gpus"] == gpus


def test_a_server_is_described_in_its_own_words_if_it_has_any() -> None:
    stats = {
        "mode": "dynamic",
        "model": {"name": "random:gpt2", "dtype": "bfloat16", "note": "random weights"},
        "machine": {"gpu": "NVIDIA H200", "cpu": "Xeon", "cores": 16},
    }
    assert described(stats) == (
        "mode dynamic, model random:gpt2, bfloat16, random weights, on NVIDIA H200, Xeon, 16 cores"
    )
    assert note_of(stats) == "Model random:gpt2: random weights"
    for nothing in (None, {}, {"model": 3, "machine": None}):
        assert described(nothing) is None
        assert note_of(nothing) is None
