"""README and docs/results.md state the figures of the recorded comparisons and film. After a new
recording the failing tests print the lines to copy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RATIOS = (("dynamic", "nobatch"), ("dynamic", "static"), ("static", "nobatch"))


def gains(name: str) -> dict[tuple[str, str], dict[str, float]]:
    text = (ROOT / f"results/reference-{name}/summary.json").read_text()
    ratios: list[dict[str, Any]] = json.loads(text)["headline"]["limit_ratios"]
    return {(r["of"], r["over"]): r["throughput"] for r in ratios}


def digits(of: dict[str, float]) -> int:
    return 2 if of["value"] < 2 else 1


@pytest.mark.parametrize("names", [("embedded", "gpt2-medium"), ("embedded-high",)])
def test_the_tables_of_the_modes_are_those_of_the_recordings(names: tuple[str, ...]) -> None:
    page = (ROOT / "docs/results.md").read_text().splitlines()
    lines = []
    for of, over in RATIOS:
        found = [gains(name)[of, over] for name in names]
        cells = [
            "{value:.{n}f} [{low:.{n}f}, {high:.{n}f}]".format(**r, n=digits(r)) for r in found
        ]
        lines.append(f"| {of} / {over}, throughput at the limit of each | {' | '.join(cells)} |")
    assert not [line for line in lines if line not in page]


def test_the_readme_states_the_recorded_comparison() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    for over in ("nobatch", "static"):
        of = gains("embedded")["dynamic", over]
        value, low, high = (f"{of[key]:.{digits(of)}f}" for key in ("value", "low", "high"))
        assert f"{value} times as many" in readme
        assert f"{low} to {high}" in readme


def test_the_readme_states_the_times_of_the_film() -> None:
    film = (ROOT / "docs/img/film.svg").read_text()
    took = re.findall(r"([0-9.]+ s) with (\w+)", film[: film.index("</title>")])
    assert [mode for _, mode in took] == ["static", "dynamic"]
    readme = (ROOT / "README.md").read_text()
    assert all(f"{seconds} with {mode}" in readme for seconds, mode in took)
