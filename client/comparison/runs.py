"""The planned runs of a comparison, one by one. All systems receive the same workload files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

from client.analysis.comparison.results import Job, Played
from client.analysis.gates import SATURATED, VALID, judge
from client.analysis.metrics import measure
from client.comparison.fleet import Fleet, Interrupted
from client.comparison.limits import FIRST
from client.comparison.plan import Plan, schedule
from client.load.live import say
from client.load.servers.stats import handled, reset_stats, settled_stats
from client.load.servers.system import System
from client.workloads.recipe import make
from client.workloads.words import Words
from client.workloads.workload_file import Workload, write_workload


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


def workload_of(
    plan: Plan, load: float, seed: int, capacity: float, words: Words | None = None
) -> Workload:
    """The workload of a load and seed, the same for every system; kept as a file."""
    rate = load * capacity
    count = max(round(rate * plan.window_of(load)), 3)
    workload = make(replace(plan.recipe, requests=count, rate=rate, seed=seed), words)
    folder = plan.folder / "workloads"
    folder.mkdir(exist_ok=True)
    path = folder / f"load{load:g}-seed{seed}.jsonl"
    if not path.exists():
        write_workload(workload, path)
    return workload


def _played(
    plan: Plan, job: Job, system: System, fleet: Fleet, capacity: float, title: str
) -> Played:
    """One run, and the server's statistics of it."""
    server = fleet.server(system)
    workload = workload_of(plan, job.load, job.seed, capacity, fleet.words)
    settled_stats(server.target)
    reset_stats(server.target)
    # the live page shows together what has the same workload
    name = f"load{job.load:g}-seed{job.seed}/{quote(job.system)}/{secrets.token_hex(2)}"
    try:
        run = fleet.play(system, workload, title, drain_s=plan.drain_of(job), name=name)
    except Interrupted as cut:
        run = cut.run
    stats = settled_stats(server.target) if server.failure() is None else None
    measured = measure(run)
    verdict = judge(run, measured, handled(stats))
    say(
        f"{title}: {measured.throughput:.0f} tok/s, {measured.ok} ok, "
        f"{measured.unfinished} unfinished, {verdict.word}"
        + (f" ({verdict.reason})" if verdict.word not in (VALID, SATURATED) else "")
    )
    return Played(job, run, stats)
