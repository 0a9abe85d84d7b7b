"""A comparison on disk: its raw data, the figures computed from them, and the page.

``judged`` makes a comparison from runs, and ``read_comparison`` from a folder, so that an old one
is computed and rendered again by the same code. Measures nothing."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from client.analysis.comparison.headline import PredictedGain, headline, length_variance_gain
from client.analysis.comparison.results import Calibration, Headline, Job, Loss, Played, Result
from client.analysis.comparison.scalars import SCALARS
from client.analysis.comparison.summary import Point, measured_together, points
from client.analysis.fairness import Isolated
from client.analysis.figures import LATENCIES, PAIRED, THROUGHPUT
from client.analysis.metrics import Objectives
from client.analysis.statistics import PERCENTILES
from client.load.raw import RawError, read_raw, write_raw
from client.load.records import write_requests
from client.load.rows import as_json, from_json
from client.report.pictures.gantt import Rows, middle, pictured


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measurements and findings. ``calibration`` and ``found`` are None if no system responded.
    ``manifest`` holds the options and the machine."""

    results: tuple[Result, ...]
    points: tuple[Point, ...]
    losses: tuple[Loss, ...]
    calibration: Calibration | None
    found: Headline | None
    predicted: PredictedGain | None
    manifest: dict[str, Any]
    rows: Rows


def judged(
    played: Sequence[Played],
    losses: Sequence[Loss],
    calibration: Calibration | None,
    manifest: dict[str, Any],
    rows: Rows,
) -> Comparison:
    """Figures, verdicts and the headline; ``manifest`` holds objectives and share, ``rows`` the
    servers' records of the requests of some runs."""
    goal = manifest["objectives"]
    objectives = None if goal is None else Objectives(**goal)
    results = measured_together(played, objectives)
    found, at = None, []
    if calibration is not None:
        at = points(results, calibration)
        if objectives is not None:
            found = headline(results, at, objectives, manifest["share"])
    predicted = None if found is None else length_variance_gain(results, found)
    return Comparison(
        tuple(results), tuple(at), tuple(losses), calibration, found, predicted, manifest, rows
    )


def write_comparison(folder: Path, c: Comparison) -> dict[str, Any]:
    """Write everything but the page and the workloads; returns all figures for --json."""
    rows = [_row(p, c.manifest["notes"]) for p in c.points]
    figures: dict[str, Any] = {
        "capacity": None if c.calibration is None else asdict(c.calibration),
        "points": rows,
        "fairness": [
            {"system": p.system, "load": p.load, **asdict(p.fairness)}
            for p in c.points
            if p.fairness is not None
        ],
        "headline": None if c.found is None else _headline(c.found),
        "length_variance": None if c.predicted is None else asdict(c.predicted),
        "lost": [asdict(loss) for loss in c.losses],
        "manifest": c.manifest,
    }
    kept = {
        r.job.name: as_json(c.rows[r.job.name], [o.index for o in middle(r.run.outcomes)])
        for r in pictured(c.results)
        if r.job.name in c.rows
    }
    (folder / "rows.json").write_text(json.dumps(kept) + "\n")
    drawn = min((r.job.seed for r in c.results), default=0)
    write_raw(folder, ((_about(r, drawn), r.run) for r in c.results))
    write_requests(
        ((r.job.name, o) for r in c.results for o in r.run.outcomes), folder / "requests.csv"
    )
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "manifest.json").write_text(json.dumps(c.manifest, indent=1) + "\n")
    (folder / "summary.json").write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def _row(point: Point, notes: Sequence[str] = ()) -> dict[str, Any]:
    """A point as one flat record, for CSV and JSON; empty where a figure is not supported.

    ``notes`` are the models' own remarks.
    """
    row: dict[str, Any] = {
        "system": point.system,
        "load": point.load,
        "offered_requests_per_s": _round(point.offered),
        "seeds": len(point.seeds),
        "verdict": point.verdict,
        "ok": point.ok,
        "failed": point.failed,
        "unfinished": point.unfinished,
    }
    for f in PAIRED:
        name, interval = f"{f.key}_median_ratio", point.ratios.get(f.key)
        if f is THROUGHPUT:
            name, interval = f"{f.key}_{f.unit}", point.throughput
        row[name] = _round(interval.value if interval else None)
        row[f"{name}_low"] = _round(interval.low if interval else None)
        row[f"{name}_high"] = _round(interval.high if interval else None)
    for f in LATENCIES:
        if f.in_summary:
            row[f"{f.key}_mean_{f.unit}"] = _round(point.mean(f.key))
            for p in PERCENTILES:
                row[f"{f.key}_p{p}_{f.unit}"] = _round(point.latency(f.key, p))
            row[f"{f.key}_n"] = point.latencies[f.key].size
    row |= {s.column: _round(point.scalars[s.column]) for s in SCALARS}
    row["void"] = " ".join(void.figure for void in point.voids)
    row["slowdown_jain"] = _round(point.fairness.jain if point.fairness else None)
    row["notes"] = "; ".join(notes)
    return row


def _round(value: float | None) -> float | None:
    """Six significant digits; infinity, for an unfinished request, is left empty."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _headline(found: Headline) -> dict[str, Any]:
    """As JSON, each pair's ratios beside its names."""
    figures = asdict(found)
    for kind in ("pairs", "controls"):
        figures[kind] = [pair | pair.pop("ratios") | pair.pop("tails") for pair in figures[kind]]
    return figures


def _about(result: Result, drawn: int) -> dict[str, Any]:
    """Keeps iterations of the drawn seed only: all of them would be too large for a repository."""
    kept = result.iterations if result.job.seed == drawn and not result.job.repeat else None
    return {"job": asdict(result.job), "server": result.server, "iterations": kept}


def read_comparison(folder: Path) -> Comparison:
    """Reads what `write_comparison` wrote and computes it again. RawError, WorkloadError."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        kept = json.loads((folder / "summary.json").read_text())
        losses = [Loss(**loss) for loss in kept["lost"]]
        if "systems" not in manifest:  # the contestants of earlier versions
            raise LookupError("no systems")
        calibration = None
        if (alone := kept["capacity"]) is not None:
            calibration = Calibration(**{**alone, "isolated": Isolated(**alone["isolated"])})
    except OSError as error:
        raise RawError(f"{folder}: {error.strerror}: {error.filename}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise RawError(f"{folder}: not a comparison that this version wrote: {error}") from None
    played = [
        Played(_job(about["job"]), run, about["server"], about["iterations"])
        for about, run in read_raw(folder)
    ]
    return judged(played, losses, calibration, manifest, _read_rows(folder / "rows.json"))


def _job(fields: dict[str, Any]) -> Job:
    """The recorded runs of earlier versions name the system ``contestant``."""
    names = {"contestant": "system"}
    return Job(**{names.get(name, name): value for name, value in fields.items()})


def _read_rows(path: Path) -> Rows:
    """Empty if servers wrote none, or an earlier version measured."""
    try:
        return {name: from_json(own) for name, own in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
