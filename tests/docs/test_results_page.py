"""README and docs/results.md state the figures that the recorded comparisons hold.

After a new recording the failing tests print the lines to copy.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RATIOS = (("dynamic", "nobatch"), ("dynamic", "static"), ("static", "nobatch"))
MAIN, BURSTY = ("embedded", "gpt2-medium"), ("embedded-high",)


def recorded(name: str) -> Any:
    return json.loads((ROOT / f"results/reference-{name}/summary.json").read_text())


def interval(of: dict[str, float], digits: str) -> str:
    value, low, high = (format(of[key], digits) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def gain(name: str, of: str, over: str) -> dict[str, float]:
    found = {
        (r["of"], r["over"]): r["throughput"] for r in recorded(name)["headline"]["limit_ratios"]
    }
    return dict(found[of, over])


def calm(name: str) -> dict[str, Any]:
    """The pair of dynamic and static at the highest load at which both keep up."""
    pairs = recorded(name)["headline"]["pairs"]
    mine = [p for p in pairs if (p["of"], p["over"]) == ("dynamic", "static") and p["ttft"]]
    return dict(max(mine, key=lambda pair: float(pair["load"])))


def medians_ms(name: str) -> list[str]:
    """TTFT of dynamic, of static, and of static without its wait where that was recorded."""
    points = [p for p in recorded(name)["points"] if p["load"] == calm(name)["load"]]
    found = {p["system"]: f"{p['ttft_p50_s'] * 1e3:.0f}" for p in points if p.get("ttft_p50_s")}
    return [found.get(mode, "?") for mode in ("dynamic", "static", "static:nowait")]


def rows(names: tuple[str, ...]) -> dict[str, list[str]]:
    """What both tables state, a cell for each recording."""
    gains = {pair: [gain(name, *pair) for name in names] for pair in RATIOS}
    return {
        **{
            f"{of} / {over}, throughput at the limit of each": [
                interval(r, ".2f" if r["value"] < 2 else ".1f") for r in gains[of, over]
            ]
            for of, over in RATIOS
        },
        "dynamic / static, median TTFT at the highest load at which both keep up": [
            interval(calm(name)["ttft"], ".2g") for name in names
        ],
        "dynamic, static, and static without its wait, milliseconds": [
            "; ".join(medians_ms(name)) for name in names
        ],
    }


@pytest.mark.parametrize("names", [MAIN, BURSTY])
def test_the_tables_of_the_modes_are_those_of_the_recordings(names: tuple[str, ...]) -> None:
    page = (ROOT / "docs/results.md").read_text().splitlines()
    lines = [f"| {title} | {' | '.join(cells)} |" for title, cells in rows(names).items()]
    assert not [line for line in lines if line not in page]


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def test_the_readme_states_the_recorded_comparison() -> None:
    readme = words_of("README.md")
    over, digits = {}, {"nobatch": 1, "static": 2}
    for other, n in digits.items():
        of = gain("embedded", "dynamic", other)
        over[other] = f"{of['value']:.{n}f}", f"{of['low']:.{n}f} to {of['high']:.{n}f}"
    dynamic_ms, static_ms, without_ms = medians_ms("embedded")
    for words in (
        f"is still {without_ms} ms",
        f"delivers {over['nobatch'][0]} times as many tokens a second as one request at a time "
        f"(95 % interval {over['nobatch'][1]})",
        f"{over['static'][0]} times as many as static batching ({over['static'][1]})",
        f"is {dynamic_ms} ms with dynamic batching and {static_ms} ms with static batching",
    ):
        assert words in readme


def test_what_deferred_requests_use_and_cost_is_what_was_recorded() -> None:
    text = words_of("results/reference-deferred/deferred.md")
    table = (ROOT / "results/reference-deferred/deferred.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    of = {row[0]: row for row in cells if row[1:3] == ["all", "budget 1.15"]}
    used = [of[load][9].replace("%", " %") for load in ("30%", "60%")]
    longer = [f"{float(of[load][6]) - 1:.0%}".replace("%", " %") for load in ("30%", "60%")]
    share = f"used {used[0]} of the idle capacity at 30 % load and {used[1]} at 60 %"
    readme, page = words_of("README.md"), words_of("docs/deferred.md")
    assert share in readme
    assert share in page
    assert f"took up to {max(longer)} longer" in readme
    assert f"took {longer[0]} and {longer[1]} longer" in page
    (step,) = re.findall(r"Step time at ([\d, ]+) decodes of 64 tokens: ([\d., ]+) ms", text)[:1]
    ms = dict(zip(*(part.split(", ") for part in step), strict=True))
    assert f"{ms['8']} ms instead of {ms['1']} ms" in words_of("docs/modes.md")
