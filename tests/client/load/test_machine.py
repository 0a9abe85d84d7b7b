"""What a report says it was measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.load.machine import machine


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
