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
MODES = ("nobatch", "static", "dynamic")
RATIOS = (("dynamic", "nobatch"), ("dynamic", "static"), ("static", "nobatch"))
MAIN = ("embedded", "gpt2-medium")
BURSTY = ("embedded-high",)


def recorded(name: str) -> Any:
    return json.loads((ROOT / f"results/reference-{name}/summary.json").read_text())


def ratio(interval: dict[str, float], digits: str = ".2f") -> str:
    value, low, high = (format(interval[k], digits) for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def short(interval: dict[str, float]) -> str:
    return ratio(interval, ".2f" if interval["value"] < 2 else ".1f")


def limit_ratio(name: str, of: str, over: str) -> dict[str, float]:
    found = {(r["of"], r["over"]): r for r in recorded(name)["headline"]["limit_ratios"]}
    return dict(found[of, over]["throughput"])


def limits(name: str, text: str) -> str:
    """Of the three modes, one after the other."""
    found = {x["system"]: x for x in recorded(name)["headline"]["limits"]}
    return "; ".join(text.format(**found[mode]) for mode in MODES)


def calm(name: str) -> dict[str, Any]:
    """The pair of dynamic and static at the highest load at which both keep up."""
    pairs = recorded(name)["headline"]["pairs"]
    mine = [p for p in pairs if (p["of"], p["over"]) == ("dynamic", "static") and p["ttft"]]
    return dict(max(mine, key=lambda p: float(p["load"])))


def point(name: str, mode: str, load: float) -> dict[str, Any]:
    points = recorded(name)["points"]
    return dict(next(p for p in points if (p["system"], p["load"]) == (mode, load)))


def asked(name: str) -> str:
    load = calm(name)["load"]
    return f"{load:g}; {point(name, 'dynamic', load)['ttft_n']}"


def medians_ms(name: str) -> list[str]:
    """TTFT of dynamic, of static, and of static without its wait where that was recorded."""
    load = calm(name)["load"]
    points = {p["system"]: p for p in recorded(name)["points"] if p["load"] == load}
    found = [points.get(m, {}).get("ttft_p50_s") for m in ("dynamic", "static", "static:nowait")]
    return ["?" if s is None else f"{s * 1e3:.0f}" for s in found]


def row(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def rows(names: tuple[str, ...]) -> list[str]:
    """What both tables state."""
    return [
        *(
            row(f"{of} / {over}, throughput at the limit of each",
                [short(limit_ratio(n, of, over)) for n in names])
            for of, over in RATIOS
        ),
        row("loads at which nobatch, static and dynamic delivered most",
            [limits(n, "{load:g}") for n in names]),
        row("requests that ended there, and seconds measured",
            [limits(n, "{requests:,} in {seconds:.0f} s") for n in names]),
        row("dynamic / static, median TTFT at the highest load at which both keep up",
            [ratio(calm(n)["ttft"], ".2g") for n in names]),
        row("that load; requests measured on each side", [asked(n) for n in names]),
        row("dynamic, static, and static without its wait, milliseconds",
            ["; ".join(medians_ms(n)) for n in names]),
        row("control: dynamic / itself",
            [ratio(recorded(n)["headline"]["controls"][0]["throughput"]) for n in names]),
    ]  # fmt: skip


def bracket(name: str) -> str:
    found = {b["system"]: b for b in recorded(name)["headline"]["capacities"]}["dynamic"]
    return f"{found['passed']:g}; {found['failed']:g}"


def dynamic_tokens_per_s(name: str) -> str:
    found = {x["system"]: x for x in recorded(name)["headline"]["limits"]}
    return f"{found['dynamic']['throughput']['value']:,.0f}"


LINES = [
    *rows(MAIN),
    row("dynamic, output tokens per second", [dynamic_tokens_per_s(n) for n in MAIN]),
    *rows(BURSTY),
    row("highest load at which dynamic met its objectives, and the next one tried",
        [bracket(n) for n in BURSTY]),
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_the_tables_of_the_modes_are_those_of_the_recordings(line: str) -> None:
    assert line in (ROOT / "docs/results.md").read_text().splitlines()


def test_the_readme_states_the_recorded_comparison() -> None:
    readme = words_of("README.md")
    over = {o: limit_ratio("embedded", "dynamic", o) for o in ("nobatch", "static")}
    digits = {"nobatch": 1, "static": 2}
    text = {
        o: (f"{r['value']:.{digits[o]}f}", f"{r['low']:.{digits[o]}f} to {r['high']:.{digits[o]}f}")
        for o, r in over.items()
    }
    dynamic_ms, static_ms, without_ms = medians_ms("embedded")
    without = [f"is still {without_ms} ms"] * (without_ms != "?")
    for words in (
        *without,
        f"delivers {text['nobatch'][0]} times as many tokens a second as one request at a time "
        f"(95 % interval {text['nobatch'][1]})",
        f"{text['static'][0]} times as many as static batching ({text['static'][1]})",
        f"is {dynamic_ms} ms with dynamic batching and {static_ms} ms with static batching",
    ):
        assert words in readme


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def test_what_deferred_requests_use_and_cost_is_what_was_recorded() -> None:
    table = (ROOT / "results/reference-deferred/deferred.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    of = {row[0]: row for row in rows if row[1:3] == ["all", "budget 1.15"]}
    used = [of[load][9].replace("%", " %") for load in ("30%", "60%")]
    longer = [f"{float(of[load][6]) - 1:.0%}".replace("%", " %") for load in ("30%", "60%")]
    share = f"used {used[0]} of the idle capacity at 30 % load and {used[1]} at 60 %"
    readme, page = words_of("README.md"), words_of("docs/deferred.md")
    assert share in readme
    assert share in page
    assert f"took up to {max(longer)} longer" in readme
    assert f"took {longer[0]} and {longer[1]} longer" in page


def test_the_cost_of_eight_tokens_is_what_was_recorded() -> None:
    text = words_of("results/reference-deferred/deferred.md")
    sizes, times = re.findall(r"Step time at ([\d, ]+) decodes of 64 tokens: ([\d., ]+) ms", text)[
        0
    ]
    ms = dict(zip(sizes.split(", "), times.split(", "), strict=True))
    assert f"{ms['8']} ms instead of {ms['1']} ms" in words_of("docs/modes.md")
