"""What a report says it was measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.load.machine import machine
from client.load.servers.stats import described, note_of


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        ("echo NVIDIA H200; echo NVIDIA H200", ["NVIDIA H200", "NVIDIA H200"]),
        ("echo 'no devices were found'; exit 6", None),
        ("", []),
    ],
)
def test_the_clients_gpus_are_those_that_the_driver_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, gpus: list[str] | None
) -> None:
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine()["gpus"] == gpus


def test_a_server_is_described_in_its_own_words() -> None:
    stats = {
        "mode": "dynamic",
        "policy": "orca",
        "model": {"name": "random:gpt2", "dtype": "bfloat16", "note": "random weights"},
        "machine": {"gpu": "NVIDIA H200", "cpu": "Xeon", "cores": 16},
    }
    assert described(stats) == (
        "mode dynamic, policy orca, model random:gpt2, bfloat16, random weights, on NVIDIA H200, "
        "Xeon, 16 cores"
    )
    assert note_of(stats) == "Model random:gpt2: random weights"


@pytest.mark.parametrize("stats", [None, {}, {"model": 3, "machine": None}])
def test_a_server_that_does_not_say_what_it_is_is_not_described(stats: dict[str, object]) -> None:
    assert described(stats) is None
    assert note_of(stats) is None
