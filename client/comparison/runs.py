"""The runs of a comparison, in the order of the schedule, and the servers that fail on the way.

All systems receive the same workload files. Yields runs and losses as they occur.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

from client.analysis.comparison.results import Job, Loss, Played
from client.analysis.gates import SATURATED, VALID, judge
from client.analysis.metrics import measure
from client.comparison.fleet import Fleet
from client.comparison.schedule import Plan, schedule
from client.load.live import live_view, say
from client.load.servers.processes import Server, ServerError
from client.load.servers.stats import handled, iterations, reset_stats, settled_stats
from client.load.workers import Crew
from client.workloads.recipe import make
from client.workloads.words import Words
from client.workloads.workload_file import Workload, write_workload


def carry_out(plan: Plan, fleet: Fleet, capacity: float) -> Iterator[Played | Loss]:
    """All runs in the order of the schedule; a server that fails is not used again."""
    jobs = schedule(plan)
    systems = {c.name: c for c in plan.systems}
    lost: set[str] = set()
    for number, job in enumerate(jobs, start=1):
        if job.system in lost:
            continue
        title = f"[{number}/{len(jobs)}] {job.system} at load {job.load:g}, seed {job.seed}" + (
            ", control" if job.repeat else ""
        )
        why: str | None
        try:
            server = fleet.server(systems[job.system])
        except ServerError as error:
            why = str(error)
        else:
            why = server.failure()  # it may have died while others were measured
            if why is None:
                workload = workload_of(plan, job.load, job.seed, capacity, fleet.words)
                played = _played(plan, job, server, fleet.crew, workload, title)
                yield played
                if played.run.interrupted:
                    raise KeyboardInterrupt
                why = server.failure()
        if why is not None:
            fleet.end(job.system)
            lost.add(job.system)
            when = f"after {number - 1} of {len(jobs)} runs"
            loss = Loss(job.system, when if number > 1 else "before the first run", why)
            say(f"{loss.headline}; it is left out from here on")
            yield loss


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
    plan: Plan, job: Job, server: Server, crew: Crew, workload: Workload, title: str
) -> Played:
    """One run, and the server's statistics of it."""
    target = server.target
    settled_stats(target)
    reset_stats(target)
    drain_s = plan.drain_of(job)
    with live_view(title, len(workload.requests), leave=False) as watch:
        run = crew.play(workload, target, drain_s=drain_s, watch=watch, name=_name_of(job))
    dead = server.failure() is not None
    stats = None if dead else settled_stats(target)
    measured = measure(run)
    verdict = judge(run, measured, handled(stats))
    say(
        f"{title}: {measured.throughput:.0f} tok/s, {measured.ok} ok, "
        f"{measured.unfinished} unfinished, {verdict.word}"
        + (f" ({verdict.reason})" if verdict.word not in (VALID, SATURATED) else "")
    )
    return Played(job, run, stats, None if dead else iterations(target))


def _name_of(job: Job) -> str:
    """Of its run: the live page shows together what has the same workload."""
    return f"load{job.load:g}-seed{job.seed}/{quote(job.system)}/{secrets.token_hex(2)}"
