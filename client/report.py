"""The comparison's report: table, pictures, manifest and raw data in one folder.

Reads results; measures nothing. Everything a reader needs to judge the figures stands beside them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from client import plots
from client.experiment import Calibration, Result
from client.gates import FAILED, INVALID_CLIENT, SATURATED
from client.html import Fold, Row, Section, Table, seconds, write_page
from client.records import write_requests
from client.statistics import Interval
from client.summary import (
    Noise,
    Point,
    Prediction,
    as_row,
    final,
    length_variance_gain,
    noise,
    points,
    write_summary,
)


def write_report(
    folder: Path,
    results: Sequence[Result],
    calibration: Calibration,
    manifest: dict[str, Any],
    warnings: Sequence[str],
) -> tuple[str, dict[str, Any]]:
    """Write the folder's files; returns the table for the terminal and all figures for --json."""
    table_points = points(results, calibration)
    rows = [as_row(p) for p in table_points]
    predicted = length_variance_gain(results, "static", "dynamic")
    noises = noise(results)
    figures: dict[str, Any] = {
        "capacity": asdict(calibration),
        "points": rows,
        "noise": [asdict(n) for n in noises],
        "length_variance": None if predicted is None else asdict(predicted),
        "manifest": manifest,
    }
    write_summary(rows, folder / "summary.csv")
    write_requests(((r.name, o) for r in results for o in r.run.outcomes), folder / "requests.csv")
    _write_iterations(results, folder / "iterations.csv")
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    (folder / "summary.json").write_text(json.dumps(figures, indent=1) + "\n")
    pictures = [
        plots.throughput(table_points, folder / "throughput.png"),
        plots.latency(table_points, folder / "latency.png"),
        plots.by_tokens(table_points, results, folder / "latency-by-tokens.png"),
        plots.over_time(results, folder / "over-time.png"),
    ]
    table = comparison_table(table_points)
    lines = [_capacity_line(calibration), *_notes(table_points, predicted, noises)]
    doubtful = [
        f"{p.contestant} at load {p.load:g} is {p.verdict}: {'; '.join(p.reasons)}"
        for p in table_points
        if p.verdict in (INVALID_CLIENT, FAILED)
    ]
    sections = [
        Section("Result", lines, table),
        Section("Pictures", images=[p for p in pictures if p is not None]),
        Section("How to read it", _READING),
        Section("Every run and its gates", folds=[_gates(r) for r in results]),
        Section("Manifest", folds=[Fold("all of it", json.dumps(manifest, indent=1))]),
    ]
    write_page(
        folder / "report.html",
        f"Batching compared: {manifest['model']}",
        _subtitle(manifest),
        [*warnings, *doubtful],
        sections,
    )
    text = table.as_text() + "\n\n" + "\n".join(lines)
    return text, figures


def comparison_table(table_points: Sequence[Point]) -> Table:
    """One row a contestant and load."""
    tail = plots.tail_of([p.latency_n["e2e"] for p in table_points])
    with_goal = any(p.goodput is not None for p in table_points)
    head = (
        "load", "contestant", "tok/s", "vs first (95 % CI)", "TTFT p50", f"TTFT p{tail:g}",
        "TPOT p50", "E2E p50", f"E2E p{tail:g}", "batch", "Jain",
        *(["good/s"] if with_goal else []),
        "unfinished", "verdict",
    )  # fmt: skip
    rows = []
    seen: set[float] = set()
    for p in table_points:
        cells = (
            f"{p.load:g}",
            p.contestant,
            f"{p.throughput.value:.0f}" if p.usable else "-",
            ratio_text(p.throughput_ratio),
            *(seconds(p.latency(k, q)) if p.usable else "-" for k, q in (
                ("ttft", 50), ("ttft", tail), ("tpot", 50), ("e2e", 50), ("e2e", tail))),
            "-" if p.batch_mean is None else f"{p.batch_mean:.1f}",
            "-" if p.fairness is None else f"{p.fairness.jain:.2f}",
            *([f"{p.goodput or 0:.2f}"] if with_goal else []),
            str(p.unfinished),
            p.verdict,
        )  # fmt: skip
        rows.append(Row(cells, first=p.load not in seen))
        seen.add(p.load)
    return Table(head, rows, left=2)


def ratio_text(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f} (one seed)"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _capacity_line(c: Calibration) -> str:
    return (
        f"Load 1 is {c.capacity:.3g} requests/s: what {c.baseline} does with one request at a time "
        f"({c.requests} requests in a closed loop of one user). Alone, a request takes "
        f"{c.isolated.base_s * 1e3:.3g} ms + {c.isolated.prompt_s * 1e3:.3g} ms a prompt token + "
        f"{c.isolated.output_s * 1e3:.3g} ms an output token."
    )


def _notes(
    table_points: Sequence[Point], predicted: Prediction | None, noises: Sequence[Noise]
) -> list[str]:
    lines = []
    if predicted is not None:
        lines.append(
            f"From length variance alone (E[max of B]/E[out], B = {predicted.batch:.1f} as static "
            f"batched at load {predicted.load:g}) dynamic should give {predicted.predicted:.2f} "
            f"times static's throughput; measured {ratio_text(predicted.measured)}."
        )
    if noises:
        parts = [f"{n.contestant} {n.first:.0f} / {n.second:.0f}" for n in noises]
        lines.append(
            f"The system's own noise, one workload played twice at load {noises[0].load:g} "
            f"(tok/s): {', '.join(parts)}."
        )
    unfair = [p for p in table_points if p.verdict == SATURATED]
    if unfair:
        lines.append(
            "SATURATED: the server could not keep up, so the run's length decides the latencies; "
            "their throughput is its limit. Unfinished ones were cut and count as infinitely late."
        )
    return lines


_READING = (
    "Throughput is output tokens delivered within the measured window per second; the window ends "
    "with the last intended arrival (never the drain) and begins where MSER-5 ends the warm-up. It "
    "is not /stats' busy throughput.",
    "Latencies run from the intended time of the request. TTFT: to its first token. TPOT: (end - "
    "first token)/(tokens - 1). E2E: to the end of the answer. Failed requests are in no latency.",
    "Percentiles are of all seeds together; one that n does not support is not printed. Ratios are "
    "paired: the same workload file on both sides, mean log-ratio over seeds, Student-t interval.",
    "Jain: the fairness of slowdown (E2E / E2E alone) over five size buckets, 1 where every size "
    "waits in proportion. good/s: requests a second that met --slo.",
    "Loads are open loop: a slow server is not asked less. The order of modes and loads is random.",
)


def _gates(result: Result) -> Fold:
    m = result.measured
    width = max(len(g.name) for g in result.verdict.gates)
    gates = "\n".join(
        f"{g.name.ljust(width)}  {g.verdict:14}  {g.found}" for g in result.verdict.gates
    )
    head = f"{result.name}: {result.verdict.word}"
    warm = f"warm-up cut {m.warm_up_s:.2f} s of {m.warm_up_s + m.window_s:.2f} s"
    return Fold(head, f"{gates}\n{warm}; tokens: {result.run.counted}")


def _subtitle(manifest: dict[str, Any]) -> str:
    machine = manifest["machine"]
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    return (
        f"{manifest['started']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB{gpu}; commit {manifest['commit']}; "
        f"{len(manifest['seeds'])} seeds, {manifest['window_s']:.1f} s a run; "
        f"arrivals {manifest['recipe']['arrivals']}, output tokens "
        f"{manifest['recipe']['output_tokens']}"
    )


def _write_iterations(results: Sequence[Result], path: Path) -> None:
    """The iterations of the runs that are drawn: the whole would outgrow a repository."""
    load, seed = max(r.load for r in final(results)), min(r.seed for r in final(results))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        headed = False
        for r in results:
            if (r.load, r.seed, r.repeat) != (load, seed, False) or not r.iterations:
                continue
            if not headed:
                writer.writerow(("run", *r.iterations["columns"]))
                headed = True
            writer.writerows((r.name, *line) for line in r.iterations["iterations"])
