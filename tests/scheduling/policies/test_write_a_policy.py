"""docs/write-a-policy.md does what it says: its policy is loaded by name, its tests pass."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduling.registry import make_policy
from seams import Served
from serving.config import Config
from tests.scheduling.shown import Shown, view

PAGE = Path(__file__).parents[3] / "docs" / "write-a-policy.md"


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The page's Python; the first block lies in a folder where imports find it."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_policies.py").write_text(found[0])
    monkeypatch.syspath_prepend(tmp_path)
    yield found
    sys.modules.pop("my_policies", None)


def test_the_policy_has_ten_lines_and_is_loaded_by_name(blocks: list[str]) -> None:
    body = blocks[0].split("class ")[1].splitlines()
    assert len([line for line in body if line]) <= 10
    assert "--policy my_policies:ShortestFirst" in PAGE.read_text()
    policy = make_policy("my_policies:ShortestFirst", Config(mode="dynamic"))
    assert policy.plan(view([Shown(1)])).advance


def test_the_counting_of_the_page_counts(blocks: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(blocks[1], names)
    policy = SimpleNamespace(served=Counter())
    names["observe"](policy, [Served(Shown(1), 4, 1), Served(Shown(2), 1, 0)])
    assert policy.served == {"immediate": 6}


def test_the_tests_of_the_page_pass(blocks: list[str]) -> None:
    names: dict[str, object] = {}
    exec(blocks[-1], names)
    tests = [test for name, test in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        assert callable(test)
        test()
