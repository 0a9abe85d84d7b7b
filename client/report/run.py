"""The report of one run: the summary on the terminal, and the raw data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from client.analysis.figures import LATENCIES, Figure
from client.analysis.gates import SATURATED, RunVerdict, judge, void_of
from client.analysis.metrics import Objectives, RunFigures, measure
from client.load.deferred import Job
from client.load.records import RUNS, RawError, Run, read_raw, write_raw, write_requests
from client.load.servers.stats import described
from client.report.tables import VOID, Table, rendered, server_table
from client.report.words import bounded
from client.workloads.spec import said
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
    own = server_table([("", [one.facts.server or {}])], "")
    return rendered(
        "run.txt.j2",
        run=one.run,
        m=one.measured,
        job=one.facts.job,
        verdict=one.verdict,
        latencies=_latency_table(one),
        server=described(one.facts.server),
        own=[" ".join(row) for row in own.rows if row[0] in _TOLD],
        mark=partial(_mark, one),
    )


_TOLD = (
    "output tokens per busy second", "latency per token, mean", "rows in an iteration, mean",
    "output tokens",
)  # fmt: skip


def _checks(one: OneRun) -> str:
    """What every gate found, for those who judge the run themselves, and what it rests on."""
    gates = [(gate.name, gate.verdict, gate.found) for gate in one.verdict.gates]
    table = Table(("check", "verdict", "found"), gates, left=3)
    shared = one.facts.environment.get("sharing", "")  # which a run from before may lack
    return "\n".join([table.as_text(), "", f"tokens: {one.run.counted}", *[shared] * bool(shared)])


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
    SpecError."""
    for about, run in read_raw(folder):
        try:
            facts = TypeAdapter(Facts).validate_python(about)
        except ValidationError as error:
            raise RawError(f"{folder / RUNS}: not the run of a client: {said(error)}") from None
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


def _finite(value: float | None) -> float | str | None:
    return "unfinished" if value is not None and not np.isfinite(value) else value
