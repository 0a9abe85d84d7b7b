"""Which runs a comparison makes, in which order, and how long they are. Pure: no server, no clock.

A block is a seed at a load. Its systems run back to back, since a machine drifts, and in the
reverse order from seed to seed (ABBA), so that a steady drift cancels. Runs without new information
are left out: those of a system far beyond its limit, except at the lowest and the highest of
these loads; at the highest the limits of all are compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, product
from pathlib import Path

from client.analysis.comparison.results import Calibration, Job
from client.experiment import in_turn
from client.load.live import say
from client.load.servers.processes import System
from client.options.compare import BUDGETS_S, SEEDS, CompareOptions

BEYOND = 1.25  # times its limit, at which a system certainly cannot keep up
_BELOW, _TWICE, _APART = 0.7, 2.0, 1.5
_LONGER = 3.0  # factor for runs at a load beyond all limits
_REPORT_S = 12.0
_BETWEEN_S = 0.5  # two runs
_LEAST_S = 1.5  # of a run
_ENOUGH = 4.0  # times the longest response of a request alone: most of a run is its middle
_ORIGINAL_S = 100.0  # as many requests


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs to make. ``window_s`` is how long a run sends, ``drain_s`` how long it waits for
    responses, except at loads beyond all limits.

    ``limits`` are the systems' knees in loads, as far as known. ``control`` runs twice at
    the highest load. ``together``: all servers stay up; otherwise one runs at a time and goes
    through all loads of a seed before the next is started.
    """

    systems: tuple[System, ...]
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    control: str | None
    window_s: float
    drain_s: float
    folder: Path
    order_seed: int
    together: bool
    limits: Mapping[str, float] = field(default_factory=dict)

    def beyond(self, system: str, load: float) -> bool:
        """Whether it certainly cannot keep up there."""
        return load >= BEYOND * self.limits.get(system, math.inf)

    def informative(self, system: System, load: float) -> bool:
        """Whether a run is worth its time."""
        lost = [x for x in self.loads if self.beyond(system.beside or system.name, x)]
        if system.beside is None:
            return load in (*lost[:1], max(self.loads)) or load not in lost
        known = system.beside in self.limits  # not if its server never started
        kept_up = [x for x in self.loads if known and x not in lost]
        return load == max(kept_up, default=min(self.loads))

    def beyond_all(self, load: float) -> bool:
        """Whether no system can keep up there: where their limits are compared."""
        return all(self.beyond(c.beside or c.name, load) for c in self.systems)

    def window_of(self, load: float) -> float:
        """Longer where limits are compared: a static batch lasts as long as a short run, whose
        throughput would depend on which part of the batch it covers."""
        return self.window_s * (_LONGER if self.beyond_all(load) else 1.0)

    def drain_of(self, job: Job) -> float:
        """Shorter where much stays unfinished after any wait; none where no system's latency is
        meaningful."""
        if self.beyond_all(job.load):
            return 0.0
        return self.drain_s * (0.4 if self.beyond(job.system, job.load) else 1.0)


def schedule(plan: Plan) -> list[Job]:
    """All runs in their order. ``plan.loads`` ascend."""
    rng = random.Random(plan.order_seed)
    names = [c.name for c in plan.systems]
    jobs: list[Job] = []
    for number, seed in enumerate(plan.seeds):
        loads = rng.sample(plan.loads, len(plan.loads))
        blocks = [_block(plan, load, seed) for load in loads]
        blocks = [list(in_turn(block, number)) for block in blocks]
        if plan.together:
            jobs += chain.from_iterable(blocks)
            continue
        for name in in_turn(names, number):
            jobs += [job for block in blocks for job in block if job.system == name]
    return jobs


def _block(plan: Plan, load: float, seed: int) -> list[Job]:
    """The control first, so that it is as far from its original as any two systems are."""
    there = [c for c in plan.systems if plan.informative(c, load)]
    jobs = [Job(c.name, load, seed, repeat=False) for c in there]
    if plan.control is not None and load == max(plan.loads):
        jobs.insert(0, Job(plan.control, load, seed, repeat=True))
    return jobs


def telling_loads(limits: Sequence[float]) -> tuple[float, ...]:
    """Loads at which systems with these limits differ, ascending.

    Below the first knee, where all keep up; between knees that are well apart; and twice the last,
    where a queue forms at once and shows the limit of each.
    """
    if not limits:
        return (1.0,)  # no system is left
    knees = sorted(limits)
    between = [math.sqrt(a * b) for a, b in pairwise(knees) if b > _APART * a]
    return tuple(float(f"{x:.2g}") for x in (_BELOW * knees[0], *between, _TWICE * knees[-1]))


def planned(
    options: CompareOptions,
    unit: Calibration,
    limits: Mapping[str, float],
    lost: Collection[str],
    *,
    together: bool,
    spent_s: float,
) -> Plan:
    """The runs that were asked for, by what was measured before them in ``spent_s``."""
    args = options.args
    systems = tuple(c for c in options.systems if c.name not in lost)
    names = [c.name for c in systems]
    control = "dynamic" if "dynamic" in names else next(reversed(names), None)
    alone = float(f"{1 / unit.capacity:.3g}")  # the original's request a second
    loads = (alone,) if args.original else options.loads or telling_loads(list(limits.values()))
    plan = Plan(
        systems, loads, _seeds(args.seed, args.seeds or SEEDS[0]),
        control=None if args.no_control else control,
        window_s=0.0,
        drain_s=5 * unit.longest_s if args.drain_s is None else args.drain_s,
        folder=options.folder,
        order_seed=args.seed,
        together=together,
        limits=limits,
    )  # fmt: skip
    if args.original:
        return replace(plan, window_s=_ORIGINAL_S)
    if args.numsamples is not None:
        return replace(plan, window_s=args.numsamples / unit.capacity)
    return _within_budget(plan, unit, args.seeds, args.budget_s, spent_s)


def _within_budget(
    plan: Plan, unit: Calibration, seeds: int | None, budget_s: float | None, spent_s: float
) -> Plan:
    """Each run as long as the budget allows at worst. A budget and a number of seeds that were not
    asked for are those in which runs are long enough for the model's responses."""
    least = max(_LEAST_S, 10 / (unit.capacity * max(plan.loads)))
    enough = max(least, _ENOUGH * unit.longest_s)
    counts = SEEDS if seeds is None else (seeds,)
    *first, last = BUDGETS_S if budget_s is None else (budget_s,)
    # the first budget for all seeds only: more time before fewer seeds
    for budget_s, count in (*product(first, counts[:1]), *product((last,), counts)):
        plan = replace(plan, seeds=_seeds(plan.order_seed, count))
        window = _window(plan, unit, budget_s - spent_s)
        if window >= enough:
            break
    if window < least:
        say(f"the budget of {last:.0f} s is too small; runs last {least:.1f} s each")
        window = least
    return replace(plan, window_s=window)


def _seeds(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def _window(plan: Plan, unit: Calibration, left_s: float) -> float:
    """How long each run may last."""
    jobs = schedule(plan)
    starts = 0
    if not plan.together:
        starts = len(plan.seeds) * sum(c.command is not None for c in plan.systems)
    # Overloaded runs use all of their drain, others almost none.
    drains = sum(plan.drain_of(job) for job in jobs if plan.beyond(job.system, job.load))
    fixed = starts * (unit.start_s + 1.5) + drains + _BETWEEN_S * len(jobs)
    parts = sum(replace(plan, window_s=1.0).window_of(job.load) for job in jobs)
    return (left_s - _REPORT_S - fixed) / max(parts, 1)
