"""What a claim's runs say: the verdict, every figure as a ratio with its interval, in words and as
JSON; and on disk, with a picture. Computes from runs and measures nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from client.analysis.comparison.bootstrap import pooled_ratio
from client.analysis.statistics import Floats, Interval, ranked
from client.claims.catalogue import CLAIMS
from client.claims.figures import METRICS, SHOWN, Metric
from client.claims.play import BASELINE, BLOCK, CONTROL, PARTS, POLICY, Played
from client.claims.verdict import MOST_FALSE, Block, doubted, events, false_alarms, find
from client.load.machine import commit, machine
from client.load.records import Run
from client.report.pictures import drawn, in_seconds, named
from client.report.tables import Table, rendered
from client.report.words import ratio_text, seconds

COLOURS = {BASELINE: "#8a8f98", POLICY: "#1f77b4"}
_POINTS = 500  # of a curve


def conclude(played: Played) -> dict[str, Any]:
    """Everything that is recorded of a claim, but for the runs."""
    claim = played.claim
    metric = METRICS[claim.metric]
    found: dict[str, Any] = {
        "policy": claim.policy, "baseline": claim.baseline, "source": claim.source,
        "claim": claim.claim, "paper": claim.paper, "metric": metric.name, "less": metric.less,
        "model": played.model, "seconds": played.seconds, "speed": asdict(played.speed),
        "servers": played.servers, "policy_sha256": played.policy_sha256,
    }  # fmt: skip
    for part in PARTS:
        runs = played.blocks(part)
        blocks = [_block(block, metric) for block in runs]
        alarms = false_alarms(blocks, metric.rank, less=metric.less)
        finding = find(blocks, metric.rank, less=metric.less)
        finding = doubted(finding, alarms, events(blocks) if metric.share else None)
        sent = sum(len(run.outcomes) for block in runs for run in block.values()) // len(BLOCK)
        found[part] = {
            **asdict(finding),
            "false_alarms": alarms,
            "load": (claim.traffic if part == "traffic" else claim.calm).load,
            "requests": sent,
            "figures": {key: _figure(runs, METRICS[key]) for key in {claim.metric: None, **SHOWN}},
        }
    return found


def _block(block: dict[str, Run], metric: Metric) -> Block:
    return Block(*(metric.values(block[side]) for side in (POLICY, BASELINE, CONTROL)))


def _figure(runs: Sequence[dict[str, Run]], metric: Metric) -> dict[str, Any]:
    """Both sides' value, and the ratio of them."""
    blocks = [_block(block, metric) for block in runs]
    ours = [b.policy for b in blocks]
    theirs = [np.concatenate([b.baseline, b.control]) for b in blocks]
    effect = pooled_ratio(ours, theirs, metric.rank)
    return {
        POLICY: _value(ours, metric),
        BASELINE: _value(theirs, metric),
        "ratio": None if effect is None else asdict(effect.interval),
    }


def _value(values: Sequence[Floats], metric: Metric) -> float | None:
    together = np.concatenate([np.zeros(0), *values])
    if metric.rank is None:
        return float(together.mean()) if together.size else None
    return ranked(together, metric.rank)


def write(folder: Path, played: Played) -> dict[str, Any]:
    """What was concluded, and the picture; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    found = conclude(played) | {"machine": machine(), "commit": commit()}
    (folder / "claim.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "claim.txt").write_text(as_text(found) + "\n")
    (folder / "picture.svg").write_text(picture(played))
    return found


def recorded(folder: Path) -> list[dict[str, Any]]:
    """All that was concluded in a folder and those in it, by the order of the catalogue."""
    found = [json.loads(path.read_text()) for path in sorted(folder.rglob("claim.json"))]
    order = {policy: number for number, policy in enumerate(CLAIMS)}
    return sorted(found, key=lambda one: (one["model"], order.get(one["policy"], len(order))))


# --- as a picture -----------------------------------------------------------------------------


def picture(played: Played) -> str:
    """As SVG, of one form for every claim: which share of the requests (of runs, where a run has
    one value) had at most so much of the metric that decides; beside it under the calm traffic."""
    panels = [partial(_panel, played, part) for part in PARTS]
    return drawn("", *panels).svg


def _panel(played: Played, part: str, axes: Axes) -> None:
    claim, metric = played.claim, METRICS[played.claim.metric]
    load = (claim.traffic if part == "traffic" else claim.calm).load
    named(axes, f"{part}, load {load:g}", metric.of_one, "share with at most so much")
    for side, name in ((BASELINE, claim.baseline), (POLICY, claim.policy)):
        values = np.sort(_values(played, part, side, metric))
        known = values[np.isfinite(values)]  # a curve that ends below 1: the others never ended
        kept = np.unique(np.linspace(0, known.size - 1, min(known.size, _POINTS)).astype(int))
        shares = (kept + 1) / max(values.size, 1)
        axes.step(known[kept], shares, where="post", label=name, color=COLOURS[side])
    axes.set_ylim(0, 1)
    if metric.text is seconds:
        axes.set_xscale("log")
        in_seconds(axes.xaxis)
    axes.legend()


def _values(played: Played, part: str, side: str, metric: Metric) -> Floats:
    sides = (BASELINE, CONTROL) if side == BASELINE else (side,)
    runs = [metric.values(block[one]) for block in played.blocks(part) for one in sides]
    if metric.share or all(values.size == 1 for values in runs):
        return np.array([values.mean() for values in runs])
    return np.concatenate([np.zeros(0), *runs])


# --- in words ---------------------------------------------------------------------------------


def as_text(found: dict[str, Any]) -> str:
    """For a terminal."""
    shown = figures(found).as_text()
    return rendered(
        "claim.txt.j2", c=found, figures=shown, ratio=ratio, smallest=smallest, allowed=MOST_FALSE
    )


def smallest(found: dict[str, Any], part: str) -> str:
    """The smallest visible ratio on the side of the claim."""
    factor = found[part]["visible"]
    return "-" if factor is None else f"{1 / factor if found['less'] else factor:.2f}"


def ratio(part: dict[str, Any], of: str = "ratio") -> str:
    return ratio_text(None if part[of] is None else Interval(**part[of]))


def figures(found: dict[str, Any]) -> Table:
    """Every figure of the traffic; the first decides. Recordings may have others besides."""
    rows = []
    for key, figure in found["traffic"]["figures"].items():
        if key not in METRICS:
            continue
        values = (figure[side] for side in (POLICY, BASELINE))
        cells = ("-" if value is None else METRICS[key].text(value) for value in values)
        rows.append((METRICS[key].name, *cells, ratio(figure)))
    return Table(("", found["policy"], found["baseline"], "ratio"), rows, ruled=(1,))


def summary(found: Sequence[dict[str, Any]]) -> Table:
    """One row a claim."""
    rows = []
    for one in found:
        traffic, calm = (one[part] for part in PARTS)
        paper = "-" if one["paper"] is None else f"{one['paper']:.2g}"
        rows.append(
            (
                one["policy"], one["model"], one["metric"], paper, ratio(traffic),
                smallest(one, "traffic"), traffic["verdict"], ratio(calm), calm["verdict"],
            )
        )  # fmt: skip
    head = (
        "policy", "model", "metric", "paper", "ratio to baseline", "visible", "verdict",
        "calm", "verdict",
    )  # fmt: skip
    return Table(head, rows, left=3)
