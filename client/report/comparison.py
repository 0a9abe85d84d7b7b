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

from client.analysis.gates import FAILED, INVALID_CLIENT, SATURATED
from client.analysis.results import Calibration, Headline, Loss, Result
from client.analysis.summary import (
    Point,
    Prediction,
    as_row,
    final,
    length_variance_gain,
    points,
    write_summary,
)
from client.load.records import write_requests
from client.load.servers import described
from client.report import plots
from client.report.headline import headline_lines
from client.report.html import Fold, Section, write_page
from client.report.tables import comparison_table, fairness_table, ratio_table, ratio_text


def write_report(
    folder: Path,
    results: Sequence[Result],
    losses: Sequence[Loss],
    calibration: Calibration | None,
    found: Headline | None,
    manifest: dict[str, Any],
    warnings: Sequence[str],
) -> tuple[str, dict[str, Any]]:
    """Write the folder's files; returns the text for the terminal and all figures for --json.

    Without ``calibration`` no contestant answered: nothing was ``found``, and the page says why.
    """
    table_points = [] if calibration is None else points(results, calibration)
    notes = manifest["notes"]
    rows = [as_row(p, notes) for p in table_points]
    predicted = length_variance_gain(results, "static", "dynamic")
    figures: dict[str, Any] = {
        "capacity": None if calibration is None else asdict(calibration),
        "points": rows,
        "fairness": _fairness(table_points),
        "headline": None if found is None else asdict(found),
        "length_variance": None if predicted is None else asdict(predicted),
        "lost": [asdict(loss) for loss in losses],
        "manifest": manifest,
    }
    write_summary(rows, folder / "summary.csv")
    write_requests(((r.name, o) for r in results for o in r.run.outcomes), folder / "requests.csv")
    _write_iterations(results, folder / "iterations.csv")
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    (folder / "summary.json").write_text(json.dumps(figures, indent=1) + "\n")
    lines = [
        *([] if calibration is None else [_capacity_line(calibration)]),
        *([] if found is None else headline_lines(found)),
        *_notes(table_points, predicted),
        *([] if table_points else ["Nothing was measured that could be compared."]),
    ]
    doubtful = [
        f"{p.contestant} at load {p.load:g} is {p.verdict}: {'; '.join(p.reasons)}"
        for p in table_points
        if p.verdict in (INVALID_CLIENT, FAILED)
    ]
    doubtful += [
        f"{p.contestant} at load {p.load:g}, {void.figure}: {void.reason}; {void.advice}"
        for p in table_points
        for void in p.voids
    ]
    table = comparison_table(table_points, losses)
    sections = [Section("Result", lines, table if table_points else None)]
    if losses:
        sections.append(
            Section("Servers that failed", folds=[Fold(x.headline, x.reason) for x in losses])
        )
    if table_points:
        sections += _figures_of(table_points, results, folder)
    sections += [
        Section("How to read it", _READING),
        Section("Every run and its gates", folds=[_gates(r) for r in results]),
        Section("Servers", _servers(manifest)),
        Section("Manifest", folds=[Fold("all of it", json.dumps(manifest, indent=1))]),
    ]
    write_page(
        folder / "report.html",
        f"Batching compared: {manifest['model']}",
        _subtitle(manifest),
        [*(loss.headline for loss in losses), *warnings, *doubtful],
        sections,
    )
    return "\n\n".join([*([table.as_text()] if table_points else []), "\n".join(lines)]), figures


def _figures_of(
    table_points: Sequence[Point], results: Sequence[Result], folder: Path
) -> list[Section]:
    pictures = [
        plots.throughput(table_points, folder / "throughput.png"),
        plots.latency(table_points, folder / "latency.png"),
        plots.by_tokens(table_points, results, folder / "latency-by-tokens.png"),
        plots.over_time(results, folder / "over-time.png"),
    ]
    sections = [Section("Pictures", images=[p for p in pictures if p is not None])]
    ratios, fair = ratio_table(table_points), fairness_table(table_points)
    if ratios.rows:
        line = "Paired over seeds, with 95 % confidence intervals; above 1 is more, or later."
        sections.insert(0, Section(f"Against {table_points[0].contestant}", [line], ratios))
    if fair.rows:
        line = "Mean slowdown (E2E / E2E alone) by output length; fair is the same for all."
        sections.append(Section("Fairness by size", [line], fair))
    return sections


def _fairness(table_points: Sequence[Point]) -> list[dict[str, Any]]:
    return [
        {"contestant": p.contestant, "load": p.load, **asdict(p.fairness)}
        for p in table_points
        if p.fairness is not None
    ]


def _capacity_line(c: Calibration) -> str:
    return (
        f"Load 1 is {c.capacity:.3g} requests/s: what {c.baseline} does with one request at a time "
        f"({c.requests} requests in a closed loop of one user). Alone, a request takes "
        f"{c.isolated.base_s * 1e3:.3g} ms + {c.isolated.prompt_s * 1e3:.3g} ms a prompt token + "
        f"{c.isolated.output_s * 1e3:.3g} ms an output token."
    )


def _notes(table_points: Sequence[Point], predicted: Prediction | None) -> list[str]:
    lines = []
    if predicted is not None:
        found = ratio_text(predicted.measured) if predicted.measured else "nothing usable"
        lines.append(
            f"From length variance alone (E[max of B]/E[out], B = {predicted.batch:.1f} as static "
            f"batched at load {predicted.load:g}) dynamic should give {predicted.predicted:.2f} "
            f"times static's throughput; measured {found}."
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
    recipe = manifest["recipe"]
    runs = (
        f"{len(manifest['seeds'])} seeds, {manifest['window_s']:.1f} s a run; "
        if "window_s" in manifest
        else ""
    )
    return (
        f"{manifest['started']}, client on {_hardware(manifest['machine'])}; "
        f"commit {manifest['commit']}; {runs}"
        f"arrivals {recipe['arrivals']}, output tokens {recipe['output_tokens']}"
    )


def _hardware(machine: dict[str, Any]) -> str:
    gpus = machine.get("gpus")
    text = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    return text + (f", {len(gpus)} x {gpus[0]}" if gpus else "")


def _servers(manifest: dict[str, Any]) -> list[str]:
    """What each contestant said it is; a client's machine need not be its server's."""
    said = manifest["servers"]
    return [
        f"{name}: {described(said.get(name)) or 'did not say what it is'}"
        for name in manifest["contestants"]
    ]


def _write_iterations(results: Sequence[Result], path: Path) -> None:
    """The iterations of the runs that are drawn: the whole would outgrow a repository."""
    kept = final(results)
    load, seed = max((r.load for r in kept), default=0.0), min((r.seed for r in kept), default=0)
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
