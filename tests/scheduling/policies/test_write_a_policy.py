"""docs/write-a-policy.md does what it says: its policy is loaded by name, its tests pass."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduling.registry import make_policy
from seams import Served
from serving.config import Config
from tests.scheduling.shown import Shown, view

PAGE = (Path(__file__).parents[3] / "docs" / "write-a-policy.md").read_text()


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, counting, *tests = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_policies.py").write_text(written)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert "--policy my_policies:ShortestFirst" in PAGE
        policy: Any = make_policy("my_policies:ShortestFirst", Config(mode="dynamic"))
        assert policy.plan(view([Shown(1)])).advance
        names: dict[str, Any] = {}
        exec(counting, names)
        policy = SimpleNamespace(served=Counter())
        names["observe"](policy, [Served(Shown(1), 4, 1), Served(Shown(2), 1, 0)])
        assert policy.served == {"immediate": 6}
        for text in tests:
            exec(text, names)
        found = [test for name, test in names.items() if name.startswith("test_")]
        assert len(found) == 4
        for test in found:
            test()
    finally:
        sys.modules.pop("my_policies", None)
