"""A comparison in progress: its servers, their limits, and all runs in order.

Every mode replays the same workload files. A server that fails is left out and the others continue.
Yields runs and losses as they occur and writes no report.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import numpy as np

from client.analysis.fairness import fit_isolated
from client.analysis.gates import FAILED, INVALID_CLIENT, judge
from client.analysis.metrics import measure, tokens_between
from client.analysis.results import Calibration, Job, Loss, Played
from client.contestant import Contestant
from client.load import servers
from client.load.live import live_view, say
from client.load.machine import cores_for
from client.load.records import Run
from client.load.target import Target
from client.load.workers import Crew
from client.schedule import Experiment, schedule
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload, write_workload

CALIBRATION_SEED = 1_000_003
CROWD = 64  # users of the closed loop that measures a limit


class Fleet:
    """The contestants' servers: all together, or one at a time if memory may not hold several.

    Together, all but one are idle, so that compared runs are seconds apart.
    """

    def __init__(
        self,
        recipe: Recipe,
        logs: Path,
        start_s: float,
        *,
        together: bool,
        workers: int = 1,
        watched: Sequence[Contestant] = (),
    ) -> None:
        """``watched``: those of our servers that one live page shows; its address is printed."""
        self._recipe, self._logs, self._start_s = recipe, logs, start_s
        self._together = together
        self._watched = [c.name for c in watched if c.command is not None]
        self._pages: dict[str, str] = {}  # of those that are watched
        self._held = ExitStack()  # their ports, which stay theirs
        self.cores = cores_for(workers)
        self.crew = Crew(workers, None if self.cores.shared else self.cores.client)
        self._launched: dict[str, tuple[servers.Server, ExitStack]] = {}
        self._ready: dict[str, servers.Server] = {}

    def __enter__(self) -> Self:
        self.crew.__enter__()
        for name in self._watched:
            port = self._held.enter_context(servers.free_port())
            self._pages[name] = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()
        self._held.close()
        self.crew.__exit__()

    def start(self, contestants: Sequence[Contestant]) -> None:
        """Start all servers that stay up together at once, so that they load their models in
        parallel."""
        if not self._together:
            return
        for contestant in contestants:
            self._launch(contestant)
        for server, _ in self._launched.values():
            with suppress(servers.ServerError):  # raised again when the server is requested
                servers.await_health(server, self._start_s)

    def server(self, contestant: Contestant) -> servers.Server:
        """Running and warm. Raises servers.ServerError if it does not come up or respond."""
        name = contestant.name
        if name not in self._ready:
            if not self._together:
                self._end_all()
            if name not in self._launched:
                self._launch(contestant)
            server = self._launched[name][0]
            try:
                servers.await_health(server, self._start_s)
                self._ready[name] = ready(server, self._recipe, self.crew)
            except BaseException:
                self.end(name)
                raise
            if name in self._watched:
                shown = ",".join(self._pages.values())
                say(f"watch all side by side: {self._pages[name]}/watch?with={shown}#measured")
                self._watched.clear()  # once: the page outlives the server that it came from
        return self._ready[name]

    def _launch(self, contestant: Contestant) -> None:
        cores = None if self.cores.shared else self.cores.servers
        with ExitStack() as stack:
            page = self._pages.get(contestant.name)
            port = None if page is None else urlsplit(page).port
            pages = list(self._pages.values())
            server = stack.enter_context(contestant.launch(self._logs, cores, port, pages))
            self._launched[contestant.name] = server, stack.pop_all()

    def _end_all(self) -> None:
        for name in list(self._launched):
            self.end(name)

    def end(self, name: str) -> None:
        """Ends it if it runs."""
        self._ready.pop(name, None)
        if name in self._launched:
            self._launched.pop(name)[1].close()


def calibrate(contestant: Contestant, fleet: Fleet, recipe: Recipe, seconds: float) -> Calibration:
    """Play a closed loop of one user against the baseline, for about ``seconds``.

    Raises servers.ServerError where it does not answer.
    """
    before = time.monotonic()
    server = fleet.server(contestant)
    took_s = time.monotonic() - before
    target = server.target
    alone = replace(recipe, arrivals="closed:users=1", seed=CALIBRATION_SEED, deferred_share=0.0)
    probe = fleet.crew.play(
        make(replace(alone, requests=4, seed=CALIBRATION_SEED + 1)),
        target,
        silence_s=servers.FIRST_ANSWER_S,
    )
    _must_answer(probe, server)
    count = int(np.clip(round(seconds / (probe.wall_s / 4)), 8, 200))
    with live_view(f"capacity of {contestant.name}", count, leave=False) as watch:
        run = fleet.crew.play(
            make(replace(alone, requests=count)),
            target,
            silence_s=servers.FIRST_ANSWER_S,
            watch=watch,
        )
    _must_answer(run, server)
    return Calibration(
        baseline=contestant.name,
        capacity=count / run.wall_s,
        isolated=fit_isolated(run.outcomes),
        ttft_s=float(np.median([(o.first_s or 0.0) - o.sent_s for o in run.outcomes])),
        longest_s=max((o.end_s or 0.0) - o.sent_s for o in run.outcomes),
        start_s=took_s,
        streamed=target.stream,
        requests=count,
    )


def knee(contestant: Contestant, fleet: Fleet, recipe: Recipe, seconds: float) -> float:
    """The limit in requests a second, from a closed loop of many users that is cut after `seconds`,
    or later if no token arrived by then: a static batch returns its tokens at its end.

    Raises servers.ServerError if there is no response.
    """
    server = fleet.server(contestant)
    crowd = replace(
        recipe, arrivals=f"closed:users={CROWD}", requests=20 * CROWD, seed=CALIBRATION_SEED,
        deferred_share=0.0,
    )  # fmt: skip
    workload = make(crowd)
    mean = float(np.mean([r.output_tokens for r in workload.requests]))
    for longest_s in (seconds, 4 * seconds, 16 * seconds):
        with live_view(f"limit of {contestant.name}", len(workload.requests), leave=False) as watch:
            run = fleet.crew.play(
                workload,
                server.target,
                drain_s=longest_s,
                silence_s=servers.FIRST_ANSWER_S,
                watch=watch,
            )
        if run.interrupted:
            raise KeyboardInterrupt
        servers.settled_stats(server.target)
        if (why := server.why_dead()) is not None:
            raise servers.ServerError(why)
        found = tokens_between(run, run.wall_s / 3, run.wall_s) / (run.wall_s * 2 / 3) / mean
        if found:
            return found
    raise servers.ServerError(f"{run.target} returned no token in {run.wall_s:.1f} s")


def adapted(target: Target, timeout_s: float = servers.FIRST_ANSWER_S) -> Target:
    """The target with streaming, and with responses of the requested length, counted token by
    token, if the server can. Raises servers.ServerError if it does not respond."""
    if target.native:
        return replace(target, stream=servers.streams(target, timeout_s))
    silence = servers.unreachable(target)
    if silence is not None:
        raise servers.ServerError(silence)
    return servers.with_extras(target, timeout_s)


def carry_out(plan: Experiment, fleet: Fleet, capacity: float) -> Iterator[Played | Loss]:
    """All runs in the order of the schedule; a server that fails is not used again."""
    jobs = schedule(plan)
    contestants = {c.name: c for c in plan.contestants}
    lost: set[str] = set()
    for number, job in enumerate(jobs, start=1):
        if job.contestant in lost:
            continue
        title = f"[{number}/{len(jobs)}] {job.contestant} at load {job.load:g}, seed {job.seed}" + (
            ", control" if job.repeat else ""
        )
        why: str | None
        try:
            server = fleet.server(contestants[job.contestant])
        except servers.ServerError as error:
            why = str(error)
        else:
            why = server.why_dead()  # it may have died while others were measured
            if why is None:
                yield from _played(plan, job, server, fleet.crew, capacity, title)
                why = server.why_dead()
        if why is not None:
            fleet.end(job.contestant)
            lost.add(job.contestant)
            when = f"after {number - 1} of {len(jobs)} runs"
            loss = Loss(job.contestant, when if number > 1 else "before the first run", why)
            say(f"{loss.headline}; it is left out from here on")
            yield loss


def workload_of(plan: Experiment, load: float, seed: int, capacity: float) -> Workload:
    """The workload of a load and seed, the same for every contestant; kept as a file."""
    rate = load * capacity
    count = max(round(rate * plan.window_of(load)), 3)
    workload = make(replace(plan.recipe, requests=count, rate=rate, seed=seed))
    folder = plan.folder / "workloads"
    folder.mkdir(exist_ok=True)
    path = folder / f"load{load:g}-seed{seed}.jsonl"
    if not path.exists():
        write_workload(workload, path)
    return workload


def _played(
    plan: Experiment, job: Job, server: servers.Server, crew: Crew, capacity: float, title: str
) -> Iterator[Played]:
    """One run, and the server's statistics of it."""
    target = server.target
    workload = workload_of(plan, job.load, job.seed, capacity)
    servers.settled_stats(target)
    servers.reset_stats(target)
    drain_s = plan.drain_of(job)
    with live_view(title, len(workload.requests), leave=False) as watch:
        run = crew.play(workload, target, drain_s=drain_s, watch=watch, name=_name_of(job))
    dead = server.why_dead() is not None
    stats = None if dead else servers.settled_stats(target)
    measured = measure(run)
    verdict = judge(run, measured, servers.handled(stats))
    say(
        f"{title}: {measured.throughput:.0f} tok/s, {measured.ok} ok, "
        f"{measured.unfinished} unfinished, {verdict.word}"
        + (f" ({verdict.reason})" if verdict.word in (INVALID_CLIENT, FAILED) else "")
    )
    yield Played(job, run, stats, None if dead else servers.iterations(target))
    if run.interrupted:
        raise KeyboardInterrupt


def _name_of(job: Job) -> str:
    """Of its run: the live page shows together what has the same workload."""
    return f"load{job.load:g}-seed{job.seed}/{quote(job.contestant)}/{secrets.token_hex(2)}"


def ready(server: servers.Server, recipe: Recipe, crew: Crew) -> servers.Server:
    """Streaming if it can, and warm: the first measured request must not include one-time work.

    Raises servers.ServerError if it does not respond.
    """
    server = replace(server, target=adapted(server.target))
    warm = replace(recipe, requests=4, rate=1.0, arrivals="burst", output_tokens="fixed:16", seed=7)
    run = crew.play(make(warm), server.target, silence_s=servers.FIRST_ANSWER_S)
    _must_answer(run, server)
    return server


def _must_answer(run: Run, server: servers.Server) -> None:
    if run.interrupted:
        raise KeyboardInterrupt
    failures = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failures:
        why = server.why_dead()
        raise servers.ServerError(
            f"{run.target} failed the first request: {failures[0]}"
            + ("" if why is None else f"; {why}")
        )
