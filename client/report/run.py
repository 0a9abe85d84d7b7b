"""The report of one run: the summary on the terminal, and the raw data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from client.analysis.figures import LATENCIES, Figure
from client.analysis.gates import SATURATED, RunVerdict, judge, void_of
from client.analysis.metrics import Objectives, RunFigures, measure
from client.load.deferred import Job
from client.load.records import RUNS, RawError, Run, read_raw, write_raw, write_requests
from client.load.servers.stats import described
from client.report.tables import VOID, Table, server_table
from client.report.words import bounded
from client.workloads.workload_file import write_workload


@dataclass(frozen=True, slots=True)
class Facts:
    """What is kept of a run besides its records.

    ``warm_up_s`` is None if the warm-up was to be found. ``server`` is the server's last /stats,
    ``handled`` the tokens that it counted during the run, None if it does not count.
    ``environment`` names the client's machine, versions and commit.
    """

    objectives: Objectives | None
    warm_up_s: float | None
    server: dict[str, Any] | None
    handled: int | None
    job: Job | None
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OneRun:
    """A run with its figures."""

    run: Run
    facts: Facts
    measured: RunFigures
    verdict: RunVerdict


def judged(run: Run, facts: Facts) -> OneRun:
    measured = measure(run, facts.objectives, facts.warm_up_s)
    return OneRun(run, facts, measured, judge(run, measured, facts.handled))


def run_text(one: OneRun) -> str:
    """The summary on the terminal: about fifteen lines, the verdict at the end."""
    stats, verdict = one.facts.server, one.verdict
    lines = [_latency_table(one).as_text(), ""]
    lines += _lines(one)
    own = _server_line(stats)
    lines += [own] if own else []
    return "\n".join([*lines, f"{verdict.word}{': ' + verdict.reason if verdict.reason else ''}"])


def _checks(one: OneRun) -> str:
    """What every gate found, for those who judge the run themselves, and what it rests on."""
    gates = [(gate.name, gate.verdict, gate.found) for gate in one.verdict.gates]
    table = Table(("check", "verdict", "found"), gates, left=3)
    shared = one.facts.environment.get("sharing", "")  # which a run from before may lack
    return "\n".join([table.as_text(), "", f"tokens: {one.run.counted}", *[shared] * bool(shared)])


def _server_line(stats: dict[str, Any] | None) -> str | None:
    """The original's figures in one line; None where the server has none."""
    table = server_table([("", [stats or {}])], "")
    wanted = ("output tokens per busy second", "latency per token, mean",
              "rows in an iteration, mean", "output tokens")  # fmt: skip
    facts = [" ".join(row) for row in table.rows if row[0] in wanted]
    return "/stats: " + "; ".join(facts) if facts else None


_AS_NAMED = (
    "planned", "ok", "failed", "unfinished", "warm_up_s", "window_s", "deferred", "deadlines_met",
    "output_tokens",
)  # fmt: skip


def run_figures(one: OneRun) -> dict[str, Any]:
    """All figures of a run under plain names, in seconds, requests and tokens."""
    run, m, verdict, job = one.run, one.measured, one.verdict, one.facts.job
    return {
        "verdict": verdict.word,
        "reason": verdict.reason,
        "gates": {g.name: {"verdict": g.verdict, "found": g.found} for g in verdict.gates},
        **{name: getattr(m, name) for name in _AS_NAMED},
        "offered_requests_per_s": m.offered,
        "achieved_requests_per_s": m.achieved,
        "throughput_tokens_per_s": m.throughput,
        "goodput_requests_per_s": m.goodput,
        "objectives_attained": m.attained,
        "deferred_job": None if job is None else job.figures(),
        "counted": run.counted,
        "streamed": run.streamed,
        "workload_sha256": run.workload.sha256,
        "void": [void.figure for void in verdict.voids],
        "latency_s": {
            f.key: {
                **{k: _finite(v.value) for k, v in m.intervals(f.key).items()},
                **{f"{k}_low": _finite(v.low) for k, v in m.intervals(f.key).items()},
                **{f"{k}_high": _finite(v.high) for k, v in m.intervals(f.key).items()},
                "n": m.latencies[f.key].size,
            }
            for f in _known(one)
        },
    }


def write_run_report(folder: Path, one: OneRun) -> None:
    """The raw data (workload.jsonl, runs.jsonl.gz and, for people, requests.csv), the figures
    and the summary."""
    run = one.run
    folder.mkdir(parents=True, exist_ok=True)
    write_workload(run.workload, folder / "workload.jsonl")
    write_raw(folder, [(asdict(one.facts), run)])
    write_requests(((run.target, o) for o in run.outcomes), folder / "requests.csv")
    figures = {**run_figures(one), **one.facts.environment, "server": one.facts.server}
    (folder / "summary.json").write_text(json.dumps(figures, indent=1) + "\n")
    (folder / "report.txt").write_text(f"{run_text(one)}\n\n{_checks(one)}\n")


def read_run(folder: Path) -> OneRun:
    """Reads what `write_run_report` wrote and computes the figures again. RawError,
    WorkloadError."""
    for about, run in read_raw(folder):
        try:
            goal, job = about["objectives"], about["job"]
            about["objectives"] = None if goal is None else Objectives(**goal)
            about["job"] = None if job is None else Job(**job)
            facts = Facts(**{field.name: about[field.name] for field in fields(Facts)})
        except (LookupError, TypeError) as error:
            raise RawError(f"{folder / RUNS}: not the run of a client: {error!r}") from None
        return judged(run, facts)
    raise RawError(f"{folder / RUNS}: contains no run")


def _known(one: OneRun) -> list[Figure]:
    saturated = one.verdict.word == SATURATED
    return [figure for figure in LATENCIES if not (figure.of_ended and saturated)]


def _latency_table(one: OneRun) -> Table:
    """Figures with their intervals; those that the client's lateness invalidated are marked."""
    ranks = ("p50", "p90", "p99")  # which fit on a line
    rows = []
    for figure in _known(one):
        shown = figure.lag is not None or figure.deferred
        if shown and (n := one.measured.latencies[figure.key].size):
            found = one.measured.intervals(figure.key)
            cells = [bounded(found[p]) + _mark(one, f"{figure.key}_{p}") for p in ranks]
            rows.append((figure.name, *cells, str(n)))
    return Table(("from the intended time", *ranks, "n"), rows)


def _mark(one: OneRun, figure: str) -> str:
    return "" if void_of(one.verdict.voids, figure) is None else VOID


def _lines(one: OneRun) -> list[str]:
    run, m, job = one.run, one.measured, one.facts.job
    lines = [
        f"server: {described(one.facts.server) or 'unknown, since no /stats were read'}",
        f"{m.ok} ok, {m.failed} failed, {m.unfinished} unfinished of {m.planned} planned; measured "
        f"window {m.window_s:.2f} s after a warm-up of {m.warm_up_s:.2f} s",
        f"offered {m.offered:.3g} requests/s, achieved {m.achieved:.3g}; throughput "
        f"{m.throughput:.1f}{_mark(one, 'throughput')} output tokens/s in the window",
    ]
    if any(m.latencies[name].size for name in ("ttft", "e2e")):
        lines.append(
            "[ ]: 95 % intervals, as if requests were independent; ∞ where n is too small for a "
            "bound"
        )
    if run.interrupted:
        lines.append(f"{run.interrupted}: figures are of what was measured before")
    if run.workload.users is not None:
        lines.append(f"closed loop of {run.workload.users} users: no intended times")
    if not run.streamed:
        lines.append("responses were not streamed: the server reported TTFT, and there is no ITL")
    if m.goodput is not None and m.attained is not None:
        goodput = f"{m.goodput:.3g}{_mark(one, 'goodput')}"
        lines.append(f"goodput {goodput} requests/s: {m.attained:.1%} of them met all objectives")
    if m.deferred:
        lines.append(f"deferred: {m.deadlines_met} of {m.deferred} met their deadline")
    if job is not None:
        lines.append(job.line())
    if one.verdict.voids:
        void = one.verdict.voids[-1]
        lines.append(f"{VOID} void: {void.reason}; {void.remedy}")
    return lines


def _finite(value: float | None) -> float | str | None:
    return "unfinished" if value is not None and not np.isfinite(value) else value
