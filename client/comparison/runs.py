"""What a comparison measures: one request alone, each system's limit, and then the planned runs.
All systems receive the same workload files."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import quote

import numpy as np

from client.analysis.comparison.results import Calibration, Job, Played
from client.analysis.figures import table_of, tokens_between
from client.analysis.gates import SATURATED, VALID, judge
from client.analysis.metrics import fit_isolated, measure
from client.comparison.fleet import Fleet, must_answer
from client.comparison.plan import Plan, schedule
from client.load.live import say
from client.load.records import Run
from client.load.servers.probing import FIRST_ANSWER_S
from client.load.servers.processes import ServerError, System
from client.load.servers.stats import handled, reset_stats, settled_stats
from client.workloads.recipe import make
from client.workloads.workload_file import Workload, write_workload

CALIBRATION_SEED = 1_000_003
CONCURRENCY = 64  # of the closed loop that measures a limit
FIRST = "before the first run"  # of a comparison, when a system was lost


def calibrate(system: System, fleet: Fleet, seconds: float) -> Calibration:
    """Play a closed loop of one user against the baseline, for about ``seconds``.

    Raises ServerError where it does not answer.
    """
    before = time.monotonic()
    server = fleet.server(system)
    took_s = time.monotonic() - before

    def alone(count: int, seed: int, title: str) -> Run:
        asked = replace(fleet.recipe, requests=count, seed=seed, deferred_share=0.0)
        workload = make(asked, fleet.words, users=1)
        run = fleet.play(system, workload, title, silence_s=FIRST_ANSWER_S)
        must_answer(run, server)
        return run

    few = alone(4, CALIBRATION_SEED + 1, f"{system.name} alone")
    count = int(np.clip(round(seconds / (few.wall_s / 4)), 8, 200))
    run = alone(count, CALIBRATION_SEED, f"capacity of {system.name}")
    return Calibration(
        baseline=system.name,
        capacity=count / run.wall_s,
        isolated=fit_isolated(table_of(run.outcomes).rows),
        ttft_s=float(np.median([(o.first_s or 0.0) - o.sent_s for o in run.outcomes])),
        longest_s=max((o.end_s or 0.0) - o.sent_s for o in run.outcomes),
        start_s=took_s,
        streamed=server.target.stream,
        requests=count,
    )


def knee(system: System, fleet: Fleet, seconds: float) -> float:
    """The limit in requests a second, from a closed loop of many users.

    Raises ServerError if there is no response.
    """
    closed = replace(fleet.recipe, requests=20 * CONCURRENCY, seed=CALIBRATION_SEED)
    workload = make(replace(closed, deferred_share=0.0), fleet.words, users=CONCURRENCY)
    return saturated(system, fleet, workload, (seconds, 4 * seconds, 16 * seconds))[0]


def saturated(
    system: System,
    fleet: Fleet,
    workload: Workload,
    lengths_s: Sequence[float],
    least_tokens: int = 1,
    silence_s: float = FIRST_ANSWER_S,
) -> tuple[float, float]:
    """Requests and tokens a second that a closed loop gets once its first third is over.

    It is cut after the first of the lengths in which so many tokens arrive: a static batch returns
    its tokens at its end. Raises ServerError if the last is too short, too.
    """
    mean = float(np.mean([r.output_tokens for r in workload.requests]))
    for longest_s in lengths_s:
        run = fleet.play(
            system, workload, f"limit of {system.name}", drain_s=longest_s, silence_s=silence_s
        )
        settled_stats(fleet.server(system).target)  # a server that died in it raises
        tokens = tokens_between(table_of(run.outcomes), run.wall_s / 3, run.wall_s)
        if tokens >= least_tokens:
            tokens_per_s = tokens / (run.wall_s * 2 / 3)
            return tokens_per_s / mean, tokens_per_s
    raise ServerError(
        f"{run.target} returned {tokens or 'no'} token{'s' * (tokens > 1)} in {run.wall_s:.1f} s"
    )


def calibrated(systems: Sequence[System], fleet: Fleet, seconds: float) -> Calibration | None:
    """The unit of load, from the first system that responds; those before it are lost."""
    for system in systems:
        say(f"measuring {system.name} with one request at a time")
        with fleet.losing(system, "while its capacity was measured"):
            found = calibrate(system, fleet, seconds)
            say(f"loads are multiples of {found.capacity:.3g} requests/s")
            return found
    return None


def limits_of(
    systems: Sequence[System], fleet: Fleet, seconds: float, unit: Calibration
) -> dict[str, float]:
    """The limit of each system, in loads."""
    found: dict[str, float] = {}
    seconds = max(seconds * 2 / 3, 6 * unit.longest_s)
    for system in systems:
        if system.beside is None and system.name not in fleet.lost:
            with fleet.losing(system, FIRST):
                limit = knee(system, fleet, seconds) / unit.capacity
                found[system.name] = limit
                say(f"{system.name}: its limit is load {limit:.3g}")
    return found


def carry_out(plan: Plan, fleet: Fleet, capacity: float) -> Iterator[Played]:
    """All runs in the order of the schedule. One that an interrupt cut is the last, before the
    KeyboardInterrupt."""
    jobs = schedule(plan)
    systems = {c.name: c for c in plan.systems}
    for number, job in enumerate(jobs, start=1):
        system = systems[job.system]
        if system.name in fleet.lost:
            continue
        title = f"[{number}/{len(jobs)}] {job.system} at load {job.load:g}, seed {job.seed}" + (
            ", control" if job.repeat else ""
        )
        when = f"after {number - 1} of {len(jobs)} runs" if number > 1 else FIRST
        with fleet.losing(system, when):
            played = _played(plan, job, system, fleet, capacity, title)
            yield played
            if played.run.interrupted:
                raise KeyboardInterrupt
            fleet.server(system)  # lost now if it died in this run, which is kept


def _played(
    plan: Plan, job: Job, system: System, fleet: Fleet, capacity: float, title: str
) -> Played:
    """One run, and the server's statistics of it. The workload of a load and seed, the same for
    every system, is kept as a file."""
    server, rate = fleet.server(system), job.load * capacity
    count = max(round(rate * plan.window_of(job.load)), 3)
    recipe = replace(fleet.recipe, requests=count, rate=rate, seed=job.seed)
    workload = make(recipe, fleet.words)
    path = plan.folder / "workloads" / f"load{job.load:g}-seed{job.seed}.jsonl"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_workload(workload, path)
    settled_stats(server.target)
    reset_stats(server.target)
    # the live page shows together what has the same workload
    name = f"load{job.load:g}-seed{job.seed}/{quote(job.system)}/{secrets.token_hex(2)}"
    try:
        run = fleet.play(system, workload, title, drain_s=plan.drain_of(job), name=name)
    except KeyboardInterrupt as cut:
        if not cut.args:
            raise
        run = cut.args[0]
    stats = settled_stats(server.target) if server.failure() is None else None
    measured = measure(run)
    verdict = judge(run, measured, handled(stats))
    say(
        f"{title}: {measured.throughput:.0f} tok/s, {measured.ok} ok, "
        f"{measured.unfinished} unfinished, {verdict.word}"
        + (f" ({verdict.reason})" if verdict.word not in (VALID, SATURATED) else "")
    )
    return Played(job, run, stats)
