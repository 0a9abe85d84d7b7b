"""Tests FlexiRequest's claim: which distribution of arrivals hurts most, and does the
difference fade at high rates?

Its README says that the uniform one has the largest influence and that rates of thousands hide it.
Here one server (dynamic, or the last system) receives the same number of requests in the same
time under each of its five distributions, at a rate that it sustains and at one that it does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter

import numpy as np

from client.analysis.metrics import measure
from client.analysis.statistics import Interval, excludes, paired_ratio
from client.comparison.fleet import Fleet
from client.comparison.limits import calibrate, knee
from client.experiment import Experiment
from client.load.live import say
from client.load.machine import commit, machine
from client.load.servers.processes import ServerError
from client.load.servers.system import System
from client.options.compare import SEEDS, CompareOptions
from client.report.html.page import Table, groups, seconds
from client.report.tables import ratio_text
from client.report.words import factor
from client.workloads.recipe import Recipe, make

SHAPES = {
    "uniform": "plan:outer=uniform,bins=20",
    "gaussian": "plan:outer=gaussian,a1=0.2,bins=20",
    "inverse gaussian": "plan:outer=inv_gaussian,a1=0.2,bins=20",
    "poisson": "plan:outer=poisson,a1=3,bins=20",
    "zipfian": "plan:outer=zipf,a1=1.1,bins=20",
}
RATES = (0.5, 1.5)  # multiples of the server's limit
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """One distribution at one rate. Medians over seeds of each run's mean and p90 TTFT, in seconds.

    ``ratio`` is of the mean TTFT to that under uniform arrivals, paired over seeds.
    """

    rate: float
    name: str
    mean_s: float
    p90_s: float
    tokens_per_s: float
    ratio: Interval | None


def distributions(options: CompareOptions, fleet: Fleet) -> list[Shape]:
    """Run all of them. Raises ServerError if the server does not respond."""
    system = options.systems[-1]
    alone = calibrate(system, fleet, options.recipe, options.args.calibrate_s)
    limit = knee(system, fleet, options.recipe, max(options.args.calibrate_s, 6 * alone.longest_s))
    seeds = range(options.args.seed, options.args.seed + (options.args.seeds or SEEDS[0]))
    runs = len(RATES) * len(SHAPES) * len(seeds)
    # Beyond its limit the server needs 1.5 times as long as the sending takes.
    window_s = max(_LEAST_S, ((options.args.budget_s or 250.0) - 30) / runs / 1.25)
    say(f"limit of {system.name}: {limit:.3g} requests/s; {runs} runs of {window_s:.1f} s each")
    found: list[Shape] = []
    for rate in RATES:
        count = max(3, round(rate * limit * window_s))
        recipe = replace(options.recipe, requests=count, rate=rate * limit, exact_duration=False)

        sides = {name: partial(_turn, fleet, system, recipe, name) for name in SHAPES}
        metrics = {"mean TTFT": itemgetter(0)}
        turns = Experiment(sides, metrics, "uniform", seeds.__getitem__).run(len(seeds))
        for name in SHAPES:
            mean_s, p90_s, tokens_per_s = np.median(turns.turns[name], axis=0).tolist()
            both = turns.figures(name), turns.figures("uniform")
            ratio = None if name == "uniform" else paired_ratio(*both)
            found.append(Shape(rate, name, mean_s, p90_s, tokens_per_s, ratio))
    return found


def _turn(
    fleet: Fleet, system: System, recipe: Recipe, name: str, seed: int
) -> tuple[float, float, float]:
    """The mean and p90 of its TTFT, and tokens a second."""
    workload = make(replace(recipe, arrivals=SHAPES[name], seed=seed), fleet.words)
    title = f"{name} at {recipe.rate:.3g} requests/s, seed {seed}"
    run = fleet.play(system, workload, title)
    measured = measure(run, None, 0.0)
    if not (ttft := measured.latencies["ttft"]).size:
        raise ServerError(f"{title}: no response contained a token")
    return float(ttft.mean()), float(np.quantile(ttft, 0.9)), measured.output_tokens / run.wall_s


def as_text(found: Sequence[Shape]) -> str:
    """The table, and what it shows about the claim."""
    rows = [
        (
            f"{s.rate:g}", s.name, seconds(s.mean_s), seconds(s.p90_s), f"{s.tokens_per_s:.0f}",
            ratio_text(s.ratio),
        )
        for s in found
    ]  # fmt: skip
    head = ("rate / limit", "arrivals", "TTFT mean", "TTFT p90", "tok/s", "mean TTFT / uniform")
    table = Table(head, rows, left=2, ruled=groups(rows))
    return "\n\n".join([table.as_text(), "\n".join(findings(found))])


def findings(found: Sequence[Shape]) -> list[str]:
    """Which distribution hurts most at each rate, and whether the difference fades."""
    lines, spreads = [], []
    for rate in RATES:
        here = sorted((s for s in found if s.rate == rate), key=lambda s: s.mean_s)
        least, worst = here[0], here[-1]
        sure = [s.name for s in here if s.ratio is not None and excludes(s.ratio, 1)]
        names = ", ".join(sure)
        certain = f"different from uniform: {names}" if sure else "no difference is certain"
        place = [s.name for s in reversed(here)].index("uniform") + 1
        spreads.append(worst.mean_s / least.mean_s)
        lines.append(
            f"At {rate:g} times the limit {worst.name} arrivals hurt most (mean TTFT "
            f"{seconds(worst.mean_s)}, {least.name} {seconds(least.mean_s)}); uniform ones are "
            f"number {place} of {len(here)}; {certain}."
        )
    fades = "fades" if spreads[1] < spreads[0] else "does not fade"
    lines.append(
        f"The largest mean TTFT is {factor(spreads[0])} times the smallest at the low rate and "
        f"{factor(spreads[1])} times at the high one: the difference {fades}."
    )
    return lines


def figures(found: Sequence[Shape]) -> str:
    """The same for machines, with the machine that measured it."""
    return json.dumps(
        {"distributions": [asdict(s) for s in found], "machine": machine(), "commit": commit()}
    )
