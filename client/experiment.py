"""One comparison as it is carried out: which runs, in which order, against which servers.

Every mode plays the same workload files; modes and loads come in shuffled order inside each
seed's block. Yields results as they come and keeps no report.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import requests

from client import servers
from client.gates import FAILED, INVALID_CLIENT, Verdict, judge
from client.live import live_view, say
from client.metrics import Isolated, Measured, Objectives, fit_isolated, measure
from client.play import play
from client.recipe import Recipe, make
from client.records import Run
from client.target import Target
from client.workload_file import Workload, write_workload

MODES = ("nobatch", "static", "dynamic")
CALIBRATION_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class Contestant:
    """A mode of our server (``command`` starts it) or a server that already runs (``target``)."""

    name: str
    command: tuple[str, ...] | None
    target: Target | None

    def open(self, logs: Path, start_s: float) -> AbstractContextManager[Target]:
        if self.command is None:
            assert self.target is not None  # one of the two is always there
            return nullcontext(self.target)
        return servers.started(self.command, self.name, logs / f"server-{self.name}.log", start_s)


@dataclass(frozen=True, slots=True)
class Calibration:
    """One request at a time on the baseline: load 1 is ``capacity`` requests a second."""

    baseline: str
    capacity: float
    isolated: Isolated
    ttft_s: float
    longest_s: float
    start_s: float
    streamed: bool
    requests: int


@dataclass(frozen=True, slots=True)
class Job:
    """One planned run. ``repeat`` marks the seed that is played a second time."""

    contestant: str
    load: float
    seed: int
    repeat: bool


@dataclass(frozen=True, slots=True)
class Result:
    """One run with its figures, and what the server said about it."""

    job: Job
    attempt: int
    run: Run
    measured: Measured
    verdict: Verdict
    server: dict[str, Any] | None
    iterations: dict[str, Any] | None

    @property
    def contestant(self) -> str:
        return self.job.contestant

    @property
    def load(self) -> float:
        return self.job.load

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def repeat(self) -> bool:
        return self.job.repeat

    @property
    def name(self) -> str:
        ending = ("-repeat" if self.repeat else "") + (
            f"-try{self.attempt}" if self.attempt else ""
        )
        return f"{self.contestant}-load{self.load:g}-seed{self.seed}{ending}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run. ``window_s`` is how long each run sends.

    ``together``: all servers live through the comparison, idle but for one, so that runs that are
    compared lie seconds apart. Otherwise one lives at a time and is started anew for each block,
    for models of which the memory does not hold several.
    """

    contestants: tuple[Contestant, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    repeat: bool
    recipe: Recipe
    window_s: float
    drain_s: float
    objectives: Objectives | None
    folder: Path
    logs: Path
    start_s: float
    order_seed: int
    together: bool


def server_command(mode: str, model: str, options: Sequence[str]) -> tuple[str, ...]:
    """How one of our modes is started; ``dynamic:tgi`` is the dynamic mode under that policy."""
    mode, _, policy = mode.partition(":")
    chosen = ("--policy", policy) if policy else ()
    return ("./server.sh", mode, "--model", model, *chosen, *options)


def calibrate(
    contestant: Contestant, recipe: Recipe, logs: Path, start_s: float, seconds: float
) -> Calibration:
    """Play a closed loop of one user against the baseline, for about ``seconds``."""
    before = time.monotonic()
    with contestant.open(logs, start_s) as target:
        took_s = time.monotonic() - before
        target = adapted(target)
        _warm(target, recipe)
        alone = replace(
            recipe, arrivals="closed:users=1", seed=CALIBRATION_SEED, deferred_share=0.0
        )
        probe = play(make(replace(alone, requests=4, seed=CALIBRATION_SEED + 1)), target)
        _must_answer(probe)
        count = int(np.clip(round(seconds / (probe.wall_s / 4)), 8, 200))
        with live_view(f"capacity of {contestant.name}", count, leave=False) as watch:
            run = play(make(replace(alone, requests=count)), target, watch=watch)
    _must_answer(run)
    if run.interrupted:
        raise KeyboardInterrupt
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


def adapted(target: Target) -> Target:
    """The target with streaming where the server can."""
    return replace(target, stream=servers.streams(target)) if target.native else target


@dataclass(slots=True)
class _Course:
    """How far the comparison is, and how many late runs may still be repeated."""

    rng: random.Random
    total: int
    spare: int
    done: int = 0


Block = tuple[int, tuple[float, ...], bool]  # a seed, its loads, whether it is the repeat


def blocks_of(plan: Plan) -> list[Block]:
    """Every seed at every load; then, where wanted, the first seed at the highest load again."""
    blocks: list[Block] = [(seed, plan.loads, False) for seed in plan.seeds]
    return [*blocks, (plan.seeds[0], plan.loads[-1:], True)] if plan.repeat else blocks


def carry_out(plan: Plan, capacity: float) -> Iterator[Result]:
    """All runs, in random order within each block; a server that dies is not asked again."""
    rng = random.Random(plan.order_seed)
    blocks = blocks_of(plan)
    total = len(plan.contestants) * sum(len(loads) for _, loads, _ in blocks)
    course = _Course(rng, total, spare=max(2, total // 8))
    if plan.together:
        with _opened(plan, plan.contestants) as targets:
            for block in blocks:
                yield from _play_block(plan, block, targets, capacity, course)
        return
    for block in blocks:
        for contestant in rng.sample(plan.contestants, len(plan.contestants)):
            with _opened(plan, (contestant,)) as targets:
                yield from _play_block(plan, block, targets, capacity, course)


@contextmanager
def _opened(plan: Plan, contestants: Sequence[Contestant]) -> Iterator[dict[str, Target]]:
    with ExitStack() as stack:
        targets = {}
        for contestant in contestants:
            target = adapted(stack.enter_context(contestant.open(plan.logs, plan.start_s)))
            _warm(target, plan.recipe)
            targets[contestant.name] = target
        yield targets


def _play_block(
    plan: Plan,
    block: Block,
    targets: dict[str, Target],
    capacity: float,
    course: _Course,
) -> Iterator[Result]:
    seed, loads, repeat = block
    jobs = [Job(name, load, seed, repeat) for name in targets for load in loads]
    for job in course.rng.sample(jobs, len(jobs)):
        course.done += 1
        target = targets.get(job.contestant)
        if target is None:
            continue
        yield from _attempts(plan, job, target, capacity, course)
        if not _alive(target):
            say(f"{job.contestant} does not answer any more and is left out from here on")
            del targets[job.contestant]


def workload_of(plan: Plan, load: float, seed: int, capacity: float) -> Workload:
    """The workload of a load and seed, the same for every contestant; kept as a file."""
    rate = load * capacity
    count = max(round(rate * plan.window_s), 3)
    workload = make(replace(plan.recipe, requests=count, rate=rate, seed=seed))
    folder = plan.folder / "workloads"
    folder.mkdir(exist_ok=True)
    path = folder / f"load{load:g}-seed{seed}.jsonl"
    if not path.exists():
        write_workload(workload, path)
    return workload


def _attempts(
    plan: Plan, job: Job, target: Target, capacity: float, course: _Course
) -> Iterator[Result]:
    """Play once, and once more where the client itself was late; both stay in the raw data.

    An eighth of the runs may be repeated so: on a machine that is too busy it would help none.
    """
    workload = workload_of(plan, job.load, job.seed, capacity)
    title = f"[{course.done}/{course.total}] {job.contestant} at load {job.load:g}, seed {job.seed}"
    for attempt in (0, 1):
        servers.settled_stats(target)
        servers.reset_stats(target)
        with live_view(title, len(workload.requests), leave=False) as watch:
            run = play(workload, target, drain_s=plan.drain_s, watch=watch)
        stats = servers.settled_stats(target)
        measured = measure(run, plan.objectives)
        verdict = judge(run, measured, (stats or {}).get("total-tokens-handled"))
        say(
            f"{title}: {measured.throughput:.0f} tok/s, {measured.ok} ok, "
            f"{measured.unfinished} unfinished, {verdict.word}"
            + (f" ({verdict.reason})" if verdict.word in (INVALID_CLIENT, FAILED) else "")
        )
        yield Result(
            job=job,
            attempt=attempt,
            run=run,
            measured=measured,
            verdict=verdict,
            server=stats,
            iterations=servers.iterations(target),
        )
        if run.interrupted:
            raise KeyboardInterrupt
        if verdict.word != INVALID_CLIENT or course.spare == 0:
            return
        course.spare -= attempt == 0


def _warm(target: Target, recipe: Recipe) -> None:
    """A few requests together, so that the first measured one does not pay for first times."""
    warm = replace(recipe, requests=4, rate=1.0, arrivals="burst", output_tokens="fixed:16", seed=7)
    _must_answer(play(make(warm), target, drain_s=None))


def _must_answer(run: Run) -> None:
    failures = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failures:
        raise servers.ServerError(f"{run.target} did not answer a first request: {failures[0]}")


def _alive(target: Target) -> bool:
    if not target.native:
        return True
    try:
        return requests.get(f"{target.url}/health", timeout=10).status_code == 200
    except requests.RequestException:
        return False
