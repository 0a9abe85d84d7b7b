"""One comparison as it is carried out: which runs, in which order, against which servers.

Every mode plays the same workload files; modes and loads come in shuffled order inside each
seed's block. A server that fails is left out and the others go on. Yields results and losses as
they come and keeps no report.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from client.analysis.gates import FAILED, INVALID_CLIENT, judge
from client.analysis.metrics import Objectives, fit_isolated, measure
from client.analysis.results import Calibration, Job, Loss, Result
from client.load import servers
from client.load.live import live_view, say
from client.load.play import play
from client.load.records import Run
from client.load.target import Target
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload, write_workload

CALIBRATION_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class Contestant:
    """A mode of our server (``command`` starts it) or a server that already runs (``target``)."""

    name: str
    command: tuple[str, ...] | None
    target: Target | None

    def open(self, logs: Path, start_s: float) -> AbstractContextManager[servers.Server]:
        """Raises servers.ServerError when entered, where it does not come up."""
        if self.command is None:
            assert self.target is not None  # one of the two is always there
            return nullcontext(servers.Server(self.target))
        return servers.started(self.command, self.name, logs / f"server-{self.name}.log", start_s)


@dataclass(frozen=True, slots=True)
class Experiment:
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
    return (str(servers.ROOT / "server.sh"), mode, "--model", model, *chosen, *options)


def calibrate(
    contestant: Contestant, recipe: Recipe, logs: Path, start_s: float, seconds: float
) -> Calibration:
    """Play a closed loop of one user against the baseline, for about ``seconds``.

    Raises servers.ServerError where it does not answer.
    """
    before = time.monotonic()
    with contestant.open(logs, start_s) as server:
        took_s = time.monotonic() - before
        server = ready(server, recipe)
        target = server.target
        alone = replace(
            recipe, arrivals="closed:users=1", seed=CALIBRATION_SEED, deferred_share=0.0
        )
        probe = play(
            make(replace(alone, requests=4, seed=CALIBRATION_SEED + 1)),
            target,
            silence_s=servers.FIRST_ANSWER_S,
        )
        _must_answer(probe, server)
        count = int(np.clip(round(seconds / (probe.wall_s / 4)), 8, 200))
        with live_view(f"capacity of {contestant.name}", count, leave=False) as watch:
            run = play(
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


def adapted(target: Target, timeout_s: float = servers.FIRST_ANSWER_S) -> Target:
    """The target with streaming where the server can. Raises servers.ServerError when silent."""
    if target.native:
        return replace(target, stream=servers.streams(target, timeout_s))
    silence = servers.unreachable(target)
    if silence is not None:
        raise servers.ServerError(silence)
    return target


@dataclass(slots=True)
class _Course:
    """How far the comparison is, and how many late runs may still be repeated."""

    rng: random.Random
    total: int
    spare: int
    done: int = 0
    lost: set[str] = field(default_factory=set)

    def lose(self, contestant: str, reason: str) -> Loss:
        """Leave it out from now on."""
        self.lost.add(contestant)
        when = f"after {self.done} of {self.total} runs" if self.done else "before the first run"
        loss = Loss(contestant, when, reason)
        say(f"{loss.headline}; it is left out from here on")
        return loss


Block = tuple[int, tuple[float, ...], bool]  # a seed, its loads, whether it is the repeat


def blocks_of(plan: Experiment) -> list[Block]:
    """Every seed at every load; then, where wanted, the first seed at the highest load again."""
    blocks: list[Block] = [(seed, plan.loads, False) for seed in plan.seeds]
    return [*blocks, (plan.seeds[0], plan.loads[-1:], True)] if plan.repeat else blocks


def carry_out(plan: Experiment, capacity: float) -> Iterator[Result | Loss]:
    """All runs, in random order within each block; a server that fails is not asked again."""
    blocks = blocks_of(plan)
    total = len(plan.contestants) * sum(len(loads) for _, loads, _ in blocks)
    course = _Course(random.Random(plan.order_seed), total, spare=max(2, total // 8))
    if plan.together:
        yield from _session(plan, blocks, plan.contestants, capacity, course)
        return
    for block in blocks:
        for contestant in course.rng.sample(plan.contestants, len(plan.contestants)):
            if contestant.name not in course.lost:
                yield from _session(plan, [block], [contestant], capacity, course)


def _session(
    plan: Experiment,
    blocks: Sequence[Block],
    contestants: Sequence[Contestant],
    capacity: float,
    course: _Course,
) -> Iterator[Result | Loss]:
    """Blocks against servers that live through all of them."""
    with ExitStack() as stack:
        alive: dict[str, servers.Server] = {}
        for contestant in contestants:
            try:
                server = stack.enter_context(contestant.open(plan.logs, plan.start_s))
                alive[contestant.name] = ready(server, plan.recipe)
            except servers.ServerError as error:
                yield course.lose(contestant.name, str(error))
        for block in blocks:
            yield from _play_block(plan, block, alive, capacity, course)


def _play_block(
    plan: Experiment,
    block: Block,
    alive: dict[str, servers.Server],
    capacity: float,
    course: _Course,
) -> Iterator[Result | Loss]:
    seed, loads, repeat = block
    jobs = [Job(name, load, seed, repeat) for name in alive for load in loads]
    for job in course.rng.sample(jobs, len(jobs)):
        server = alive.get(job.contestant)
        if server is None:
            continue
        why = server.why_dead()  # it may have gone while others were measured
        if why is None:
            course.done += 1
            yield from _attempts(plan, job, server, capacity, course)
            why = server.why_dead()
        if why is not None:
            del alive[job.contestant]
            yield course.lose(job.contestant, why)


def workload_of(plan: Experiment, load: float, seed: int, capacity: float) -> Workload:
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
    plan: Experiment, job: Job, server: servers.Server, capacity: float, course: _Course
) -> Iterator[Result]:
    """Play once, and once more where the client itself was late; both stay in the raw data.

    An eighth of the runs may be repeated so: on a machine that is too busy it would help none.
    """
    target = server.target
    workload = workload_of(plan, job.load, job.seed, capacity)
    title = f"[{course.done}/{course.total}] {job.contestant} at load {job.load:g}, seed {job.seed}"
    for attempt in (0, 1):
        servers.settled_stats(target)
        servers.reset_stats(target)
        with live_view(title, len(workload.requests), leave=False) as watch:
            run = play(workload, target, drain_s=plan.drain_s, watch=watch)
        dead = server.why_dead() is not None
        stats = None if dead else servers.settled_stats(target)
        measured = measure(run, plan.objectives)
        verdict = judge(run, measured, servers.handled(stats))
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
            iterations=None if dead else servers.iterations(target),
        )
        if run.interrupted:
            raise KeyboardInterrupt
        if verdict.word != INVALID_CLIENT or course.spare == 0:
            return
        course.spare -= attempt == 0


def ready(server: servers.Server, recipe: Recipe) -> servers.Server:
    """Streaming where it can, and warm: the first measured request must not pay for first times.

    Raises servers.ServerError where it does not answer.
    """
    server = replace(server, target=adapted(server.target))
    warm = replace(recipe, requests=4, rate=1.0, arrivals="burst", output_tokens="fixed:16", seed=7)
    _must_answer(play(make(warm), server.target, silence_s=servers.FIRST_ANSWER_S), server)
    return server


def _must_answer(run: Run, server: servers.Server) -> None:
    if run.interrupted:
        raise KeyboardInterrupt
    failures = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failures:
        why = server.why_dead()
        raise servers.ServerError(
            f"{run.target} did not answer a first request: {failures[0]}"
            + ("" if why is None else f"; {why}")
        )
