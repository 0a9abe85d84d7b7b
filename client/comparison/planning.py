"""From the command line to the runs: what is measured before them, their loads, their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from client.analysis.comparison.results import Calibration, Loss
from client.comparison.fleet import Fleet
from client.comparison.limits import calibrate, knee
from client.comparison.schedule import Plan, schedule, telling_loads
from client.load.live import clock_in, say
from client.load.servers.processes import ServerError
from client.load.servers.system import System
from client.options.compare import BUDGETS_S, SEEDS, CompareOptions

_REPORT_S = 12.0
_BETWEEN_S = 0.5  # two runs
_LEAST_S = 1.5  # of a run
_ENOUGH = 4.0  # times the longest response of a request alone: most of a run is its middle
_ORIGINAL_S = 100.0  # as many requests


def calibrated(options: CompareOptions, fleet: Fleet, losses: list[Loss]) -> Calibration | None:
    """The unit of load, from the first system that responds; those before it are lost."""
    for system in options.systems:
        say(f"measuring {system.name} with one request at a time")
        try:
            found = calibrate(system, fleet, options.recipe, options.args.calibrate_s)
        except ServerError as error:
            losses.append(Loss(system.name, "while its capacity was measured", str(error)))
            say(f"{losses[-1].headline}; it is left out from here on")
            continue
        say(f"loads are multiples of {found.capacity:.3g} requests/s")
        return found
    return None


def limits_of(
    options: CompareOptions, fleet: Fleet, calibration: Calibration, losses: list[Loss]
) -> dict[str, float]:
    """The limit of each system, in loads; one that does not respond is lost."""
    found: dict[str, float] = {}
    seconds = max(options.args.calibrate_s * 2 / 3, 6 * calibration.longest_s)
    for system in options.systems:
        if system.beside or any(loss.system == system.name for loss in losses):
            continue
        try:
            limit = knee(system, fleet, options.recipe, seconds) / calibration.capacity
        except ServerError as error:
            fleet.end(system.name)
            losses.append(Loss(system.name, "before the first run", str(error)))
            say(f"{losses[-1].headline}; it is left out from here on")
            continue
        found[system.name] = limit
        say(f"{system.name}: its limit is load {limit:.3g}")
    return found


def planned(
    options: CompareOptions,
    calibration: Calibration,
    limits: dict[str, float],
    losses: Sequence[Loss],
    *,
    together: bool,
) -> Plan:
    args, lost = options.args, {loss.system for loss in losses}
    there = tuple(c for c in options.systems if c.name not in lost)
    if args.original:
        loads: tuple[float, ...] = (float(f"{1 / calibration.capacity:.3g}"),)
    else:
        loads = options.loads or telling_loads(list(limits.values()))
    return Plan(
        systems=there,
        loads=loads,
        seeds=_seeds(args.seed, args.seeds or SEEDS[0]),
        control=None if args.no_control or not there else _control(there),
        recipe=options.recipe,
        window_s=0.0,
        drain_s=args.drain_s if args.drain_s is not None else 5 * calibration.longest_s,
        folder=options.folder,
        order_seed=args.seed,
        together=together,
        limits=limits,
    )


def _control(systems: Sequence[System]) -> str:
    """The system that is compared with itself: dynamic, otherwise the last."""
    names = [c.name for c in systems]
    return "dynamic" if "dynamic" in names else names[-1]


def with_window(
    plan: Plan, calibration: Calibration, options: CompareOptions, spent_s: float
) -> Plan:
    """The plan with each run's length: as asked, or what fits the budget at worst. Where nothing
    was asked, the budget and the number of seeds are those in which runs are long enough for the
    model's responses."""
    args = options.args
    if args.original:
        return replace(plan, window_s=_ORIGINAL_S)
    if args.numsamples is not None:
        return replace(plan, window_s=args.numsamples / calibration.capacity)
    least = max(_LEAST_S, 10 / (calibration.capacity * max(plan.loads)))
    enough = max(least, _ENOUGH * calibration.longest_s)
    counts = SEEDS if args.seeds is None else (args.seeds,)
    budgets_s = BUDGETS_S if args.budget_s is None else (args.budget_s,)
    # the first budget for all seeds only: more time before fewer seeds
    for budget_s, count in (*((b, counts[0]) for b in budgets_s[:-1]),
                            *((budgets_s[-1], n) for n in counts)):  # fmt: skip
        plan = replace(plan, seeds=_seeds(args.seed, count))
        window = _window(plan, calibration, budget_s - spent_s)
        if window >= enough:
            break
    if window < least:
        say(f"the budget of {budget_s:.0f} s is too small; runs last {least:.1f} s each")
        window = least
    return replace(plan, window_s=window)


def _seeds(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def _window(plan: Plan, calibration: Calibration, left_s: float) -> float:
    """How long each run may last."""
    jobs = schedule(plan)
    starts = 0
    if not plan.together:
        starts = len(plan.seeds) * sum(c.command is not None for c in plan.systems)
    # Overloaded runs use all of their drain, others almost none.
    drains = sum(plan.drain_of(job) for job in jobs if plan.beyond(job.system, job.load))
    fixed = starts * (calibration.start_s + 1.5) + drains + _BETWEEN_S * len(jobs)
    parts = sum(replace(plan, window_s=1.0).window_of(job.load) for job in jobs)
    return (left_s - _REPORT_S - fixed) / max(parts, 1)


def last_end(plan: Plan) -> str:
    """When the last run would end if every answer came with the last send."""
    return clock_in(sum(plan.window_of(job.load) for job in schedule(plan)))


def lengths(plan: Plan) -> str:
    """Those of its runs, in seconds."""
    return " and ".join(f"{s:.1f} s" for s in sorted({plan.window_of(x) for x in plan.loads}))
