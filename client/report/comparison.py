"""The report of a comparison: raw data, the figures computed from them, the page, and the text.

``judged`` makes a comparison from runs, and ``read_comparison`` from a folder, so that an old one
is computed and rendered again by the same code. The page has the result first, as bars and a
sentence, with the two things that the original showed: the servers' statistics and latency by
requested tokens. Then the loads; what is needed to judge them is folded away. Its own words are in
``comparison.html.j2``.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from client.analysis.comparison.headline import headline
from client.analysis.comparison.results import Calibration, Headline, Job, Loss, Played, Result
from client.analysis.comparison.summary import Point, measured_together, names_of, planned, points
from client.analysis.figures import E2E, LATENCIES, PAIRED, THROUGHPUT, TTFT
from client.analysis.gates import SEVERITY, VALID
from client.analysis.metrics import FRONT, Objectives
from client.analysis.statistics import PERCENTILES, Interval
from client.load.records import RawError, read_raw, write_raw, write_requests
from client.report.pictures import bars, latency, sizes, throughput
from client.report.sentences import sentences
from client.report.tables import (
    VOID,
    Table,
    comparison_table,
    control_text,
    limit_table,
    pair_table,
    rendered,
    server_table,
)
from client.report.words import contained
from client.workloads.spec import SpecError


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measurements and findings. ``calibration`` and ``found`` are None if no system responded.
    ``manifest`` holds the options and the machine."""

    results: tuple[Result, ...]
    points: tuple[Point, ...]
    losses: tuple[Loss, ...]
    calibration: Calibration | None
    found: Headline | None
    manifest: dict[str, Any]


def judged(
    played: Sequence[Played],
    losses: Sequence[Loss],
    calibration: Calibration | None,
    manifest: dict[str, Any],
) -> Comparison:
    """Figures, verdicts and the headline; ``manifest`` holds objectives and share."""
    goal = manifest["objectives"]
    objectives = None if goal is None else Objectives(**goal)
    results = measured_together(played, objectives)
    found, at = None, []
    if calibration is not None:
        at = points(results, calibration)
        if objectives is not None:
            found = headline(at, objectives, manifest["share"])
    return Comparison(tuple(results), tuple(at), tuple(losses), calibration, found, manifest)


def write_comparison(folder: Path, c: Comparison) -> dict[str, Any]:
    """Write everything but the workloads; returns all figures for --json."""
    baseline = None if c.calibration is None else c.calibration.baseline
    pairs = () if c.found is None else c.found.pairs
    ratios = {(p.of, p.load): p.ratios for p in pairs if p.over == baseline}
    rows = [_row(p, ratios.get((p.system, p.load), {}), c.manifest["notes"]) for p in c.points]
    figures: dict[str, Any] = {
        "capacity": None if c.calibration is None else asdict(c.calibration),
        "points": rows,
        "headline": None if c.found is None else _headline(c.found),
        "lost": [asdict(loss) for loss in c.losses],
        "manifest": c.manifest,
    }
    write_raw(folder, (({"job": asdict(r.job), "server": r.server}, r.run) for r in c.results))
    write_requests(
        ((r.job.name, o) for r in c.results for o in r.run.outcomes), folder / "requests.csv"
    )
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    (folder / "manifest.json").write_text(json.dumps(c.manifest, indent=1) + "\n")
    (folder / "summary.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "report.html").write_text(_page(c), encoding="utf-8")
    return figures


def _row(
    point: Point, ratios: Mapping[str, Interval | None], notes: Sequence[str]
) -> dict[str, Any]:
    """A point as one flat record, for CSV and JSON; empty where a figure is not supported.

    ``ratios`` are to the baseline, ``notes`` the models' own remarks.
    """
    row: dict[str, Any] = {
        "system": point.system,
        "load": point.load,
        "offered_requests_per_s": point.offered,
        "seeds": len(planned(point.runs)),
        "verdict": point.verdict,
        "ok": point.ok,
        "failed": point.failed,
        "unfinished": point.unfinished,
    }
    for f in PAIRED:
        name, interval = f"{f.key}_median_ratio", ratios.get(f.key)
        if f is THROUGHPUT:
            name, interval = f"{f.key}_tokens_per_s", point.throughput
        for part in ("value", "low", "high"):
            row[name if part == "value" else f"{name}_{part}"] = getattr(interval, part, None)
    for f in LATENCIES:
        if f.lag is not None:
            row[f"{f.key}_mean_s"] = point.mean(f.key)
            for p in PERCENTILES:
                row[f"{f.key}_p{p}_s"] = point.latency(f.key, p)
            row[f"{f.key}_n"] = point.latencies[f.key].size
    row |= {
        "dispatch_lag_p99_s": point.lag_p99_s,
        "goodput_requests_per_s": point.goodput,
        "objectives_attained": point.attained,
        "batch_size_mean": point.batch,
        "padding_share": point.padding,
        "void": " ".join(void.figure for void in point.voids),
        "notes": "; ".join(notes),
    }
    return {name: _rounded(v) if isinstance(v, float) else v for name, v in row.items()}


def _rounded(value: float) -> float | None:
    """Six significant digits; infinity, for an unfinished request, is left empty."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _headline(found: Headline) -> dict[str, Any]:
    """As JSON, each pair's ratios beside its names."""
    figures = asdict(found)
    for kind in ("pairs", "controls"):
        figures[kind] = [pair | pair.pop("ratios") for pair in figures[kind]]
    return figures


_NEEDED = {"systems", "objectives", "share", "notes", "warnings", "servers", "model", "recipe"}


def read_comparison(folder: Path) -> Comparison:
    """Reads what `write_comparison` wrote and computes it again. RawError, SpecError."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        kept = json.loads((folder / "summary.json").read_text())
        losses = [Loss(**loss) for loss in kept["lost"]]
        if missing := _NEEDED - {*manifest}:  # earlier versions had contestants for systems
            raise LookupError(f"no {', '.join(sorted(missing))} in manifest.json")
        reader: TypeAdapter[Calibration | None] = TypeAdapter(Calibration | None)
        calibration = reader.validate_python(kept["capacity"])
        played = [Played(_job(of["job"]), run, of["server"]) for of, run in read_raw(folder)]
    except (RawError, SpecError):
        raise
    except OSError as error:
        raise RawError(f"{folder}: {error.strerror}: {error.filename}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise RawError(f"{folder}: not a comparison that this version wrote: {error}") from None
    return judged(played, losses, calibration, manifest)


def _job(fields: dict[str, Any]) -> Job:
    """The recorded runs of earlier versions name the system ``contestant``."""
    names = {"contestant": "system"}
    return Job(**{names.get(name, name): value for name, value in fields.items()})


def as_text(c: Comparison) -> str:
    """Table, sentences, control: it fits on a screen, the result at its end."""
    if not c.points:
        return "\n".join(_sentences(c))
    table = comparison_table(c.points, c.losses, short=True).as_text()
    marked = [f"{VOID} void, for the reason on the page"] * (VOID in table)
    return "\n\n".join(["\n".join([table, *marked]), "\n".join([*_controls(c), *_sentences(c)])])


def _page(c: Comparison) -> str:
    gates = [(r.job.name, g.name, g.verdict, g.found) for r in c.results for g in r.verdict.gates]
    return rendered(
        "comparison.html.j2",
        c=c,
        words=SEVERITY,
        front=FRONT,
        sentences=_sentences(c),
        controls=_controls(c),
        contained=contained(c.manifest["recipe"]["arrivals"]),
        gates=Table(("run", "gate", "verdict", "found"), gates, left=4),
        manifest=json.dumps(c.manifest, indent=1),
        **(_of_points(c) if c.points else {}),
    )


def _of_points(c: Comparison) -> dict[str, Any]:
    """Tables and pictures."""
    at, found, load = c.points, c.found, _telling_load(c.points)
    voids = [(f"{p.load:g}", p.system, v.figure, v.reason, v.remedy) for p in at for v in p.voids]
    return {
        "bars": bars(found, names_of(at)) if found and found.limits else None,
        "server": _server_table(c, load),
        "sizes": sizes(at, load),
        "loads": comparison_table(at, c.losses),
        "pictures": [throughput(at), latency(at, TTFT), latency(at, E2E)],
        "limits": limit_table(found) if found else None,
        "pairs": pair_table(found) if found else None,
        "voids": Table(("load", "system", "figure", "why it is void", "remedy"), voids, left=5),
    }


def _sentences(c: Comparison) -> list[str]:
    if not c.points:
        return ["No runs could be compared."]
    return [] if c.found is None else sentences(c.found, c.points, _waits_s(c.manifest["servers"]))


def _waits_s(servers: dict[str, Any]) -> dict[str, float]:
    """How long the batches of static systems wait for others to join."""
    return {
        name: wait_ms / 1e3
        for name, told in servers.items()
        if told.get("mode") == "static" and (wait_ms := told.get("options", {}).get("max_wait_ms"))
    }


def _controls(c: Comparison) -> list[str]:
    return [] if c.found is None else [control_text(pair) for pair in c.found.controls]


def _server_table(c: Comparison, load: float) -> Table:
    told = {
        p.system: [r.server for r in planned(p.runs) if r.server]
        for p in c.points
        if p.load == load
    }
    return server_table([x for x in told.items() if x[1]], f"/stats at load {load:g}")


def _telling_load(points: Sequence[Point]) -> float:
    """The most informative load: the highest that all systems ran and with which some keep up,
    otherwise the highest with which one does, otherwise the lowest."""
    loads = sorted({p.load for p in points}, reverse=True)
    sustained = [x for x in loads if any(p.load == x and p.verdict == VALID for p in points)]
    everyone = len(names_of(points))
    whole = [x for x in sustained if sum(p.load == x for p in points) == everyone]
    return (whole or sustained or loads[-1:])[0]
