"""The report of one run: a table for the terminal, a page with the load above its latency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from client.analysis.gates import Verdict
from client.analysis.metrics import LATENCIES, Measured
from client.analysis.statistics import PERCENTILES
from client.load.deferred import Job
from client.load.machine import commit, machine, versions
from client.load.records import Run, write_deliveries, write_requests
from client.load.servers import described, note_of
from client.report.html import Fold, Row, Section, Table, seconds, write_page
from client.workloads.workload_file import write_workload

_NAMES = {
    "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "ttft_sent": "TTFT from the send",
    "e2e_sent": "E2E from the send", "queue": "queue, server's word",
    "deferred_e2e": "E2E of deferred",
}  # fmt: skip


def run_table(
    run: Run, m: Measured, verdict: Verdict, stats: dict[str, Any] | None, job: Job | None
) -> tuple[str, dict[str, Any]]:
    """Text for people and figures for machines."""
    gates = "\n".join(
        f"  {g.name.ljust(22)} {g.verdict.ljust(14)} {g.found}" for g in verdict.gates
    )
    text = "\n".join(
        (
            _latency_table(m).as_text(),
            "",
            *_lines(run, m, stats, job),
            "",
            f"{verdict.word}{': ' + verdict.reason if verdict.reason else ''}",
            gates,
        )
    )
    return text, run_figures(run, m, verdict, job)


def run_figures(run: Run, m: Measured, verdict: Verdict, job: Job | None) -> dict[str, Any]:
    """All figures of a run under plain names, in seconds, requests and tokens."""
    return {
        "verdict": verdict.word,
        "reason": verdict.reason,
        "gates": {g.name: {"verdict": g.verdict, "found": g.found} for g in verdict.gates},
        "planned": m.planned,
        "ok": m.ok,
        "failed": m.failed,
        "unfinished": m.unfinished,
        "warm_up_s": m.warm_up_s,
        "window_s": m.window_s,
        "offered_requests_per_s": m.offered,
        "achieved_requests_per_s": m.achieved,
        "throughput_tokens_per_s": m.throughput,
        "goodput_requests_per_s": m.goodput,
        "objectives_attained": m.attained,
        "deferred": m.deferred,
        "deadlines_met": m.deadlines_met,
        "deferred_job": None if job is None else job.figures(),
        "output_tokens": m.output_tokens,
        "counted": run.counted,
        "streamed": run.streamed,
        "workload_sha256": run.workload.sha256,
        "latency_s": {
            name: {
                **{k: _finite(v) for k, v in m.percentiles(name).items()},
                "n": m.latencies[name].size,
            }
            for name in LATENCIES
        },
    }


def write_run_report(
    folder: Path,
    run: Run,
    m: Measured,
    verdict: Verdict,
    stats: dict[str, Any] | None,
    job: Job | None,
) -> None:
    """report.html, over-time.png, summary.json, requests.csv, tokens.csv and workload.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = run_figures(run, m, verdict, job)
    environment = {"machine": machine(), "versions": versions(), "commit": commit()}
    (folder / "summary.json").write_text(
        json.dumps({**figures, **environment, "server": stats}, indent=1) + "\n"
    )
    write_requests(((run.target, o) for o in run.outcomes), folder / "requests.csv")
    write_deliveries(((run.target, o) for o in run.outcomes), folder / "tokens.csv")
    write_workload(run.workload, folder / "workload.jsonl")
    from client.report.run_plot import draw_run  # matplotlib takes a second to import

    picture = draw_run(run, m, folder / "over-time.png")
    gates = Table(
        ("gate", "verdict", "found"),
        [Row((g.name, g.verdict, g.found)) for g in verdict.gates],
        left=3,
    )
    generator = json.dumps(dict(run.workload.generator), indent=1)
    folds = [Fold("workload", generator), Fold("environment", json.dumps(environment, indent=1))]
    if stats is not None:
        folds.append(Fold("the server's /stats", json.dumps(stats, indent=1)))
    write_page(
        folder / "report.html",
        f"One run against {run.target}",
        f"{m.planned} requests, workload {run.workload.sha256[:12]}; {verdict.word}",
        [text for text in (note_of(stats), verdict.reason) if text],
        [
            Section("Latency", _lines(run, m, stats, job), _latency_table(m)),
            Section("The load, and the latency it caused", images=[picture]),
            Section("Gates", table=gates),
            Section("Details", folds=folds),
        ],
    )


def _latency_table(m: Measured) -> Table:
    rows = [
        Row(
            (
                _NAMES[name],
                *(seconds(m.percentiles(name)[f"p{p}"]) for p in PERCENTILES),
                str(m.latencies[name].size),
            )
        )
        for name in LATENCIES
        if m.latencies[name].size
    ]
    return Table(("from the intended time", *(f"p{p}" for p in PERCENTILES), "n"), rows)


def _lines(run: Run, m: Measured, stats: dict[str, Any] | None, job: Job | None) -> list[str]:
    lines = [
        f"server: {described(stats) or 'it did not say what it is'}",
        f"{m.ok} ok, {m.failed} failed, {m.unfinished} unfinished of {m.planned} planned; measured "
        f"window {m.window_s:.2f} s after a warm-up of {m.warm_up_s:.2f} s",
        f"offered {m.offered:.3g} requests/s, achieved {m.achieved:.3g}; throughput "
        f"{m.throughput:.1f} output tokens/s in the window (counted: {run.counted})",
    ]
    if run.workload.users is not None:
        lines.append(f"closed loop of {run.workload.users} users: no intended times")
    if not run.streamed:
        lines.append("answers were not streamed: TTFT is the server's word, there is no ITL")
    if m.goodput is not None and m.attained is not None:
        lines.append(
            f"goodput {m.goodput:.3g} requests/s: {m.attained:.1%} of the requests met them all"
        )
    if m.deferred:
        lines.append(f"deferred: {m.deadlines_met} of {m.deferred} met their deadline")
    if job is not None:
        lines.append(job.line())
    return lines


def _finite(value: float | None) -> float | str | None:
    return "unfinished" if value is not None and not np.isfinite(value) else value
