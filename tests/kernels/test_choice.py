"""Choices among kernels: measured once, kept, and believed only where they can be."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import kernels.choice
from kernels.choice import Choices, kept_choices


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.choice, "cache_folder", lambda: tmp_path)


def choose(
    measured: list[str], *keys: str, machine: str = "this", slow_alone: bool = False
) -> Choices:
    allowed = ["slow"] if slow_alone else ["fast", "slow"]

    def measure(missing: Sequence[str]) -> Choices:
        measured.extend(missing)
        return dict.fromkeys(missing, allowed[0])

    return kept_choices("some", lambda: machine, keys, allowed, measure)


def test_a_key_is_measured_once_unless_the_file_is_invalid(tmp_path: Path) -> None:
    measured = list[str]()  # keys, in order
    assert choose(measured, "a") == {"a": "fast"}
    (path,) = tmp_path.glob("choice-some-*.json")
    path.write_text(json.dumps({"a": "slow"}))  # as an earlier start measured it
    assert choose(measured, "a", "b") == {"a": "slow", "b": "fast"}
    assert choose(measured, "b", "a") == {"b": "fast", "a": "slow"}
    assert measured == ["a", "b"], "what is missing in the file is added"
    choose(measured, "a", machine="another")
    assert measured == ["a", "b", "a"]
    for text in ("", "[]", '{"a": []}', '{"a": "of another age"}'):
        path.write_text(text)
        assert choose(measured, "a") == json.loads(path.read_text()) == {"a": "fast"}
    assert measured[3:] == ["a"] * 4


def test_a_start_without_a_compiler_decides_nothing_for_later_ones() -> None:
    assert choose([], "a", slow_alone=True) == {"a": "slow"}
    assert choose([], "a") == {"a": "fast"}


def test_processes_that_start_together_measure_once_and_agree() -> None:
    measured, found = list[str](), list[Choices]()
    threads = [
        threading.Thread(target=lambda: found.append(choose(measured, "a", "b"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured == ["a", "b"]
    assert found == [{"a": "fast", "b": "fast"}] * 3
