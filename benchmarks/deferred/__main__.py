"""How much deferred requests delay immediate ones, and how much capacity they use: a trade-off
curve.

    python -m benchmarks.deferred                                               # some 20 minutes
    python -m benchmarks.deferred --model random:gpt2-medium --dtype bfloat16   # some 13

One process, the bare loop in real time, the same weights and, in each round, the same arrivals
under every policy: immediate requests at shares of the measured capacity (Poisson, and the burst
shapes `medium` and `high` of the load generator), and an endless backlog of deferred requests of
the same sizes. `alone` runs without the backlog. Ratios are relative to it, for each shape over the
requests of all rounds, with their confidence intervals, and `all` is the geometric mean over the
shapes. `alone again` repeats `alone` at the other end of each round: the distance of its ratios
from 1 is noise. The spare capacity is the rate of deferred requests alone minus the rate of
immediate ones. What the curve allows is computed from the step times measured in the same round
(benchmarks/deferred/points.py).
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from benchmarks.deferred.bench import SHORT, Bench, RealClock, Sizes
from benchmarks.deferred.points import Cell, Measured, Point, Relative, points
from benchmarks.deferred.sides import ALONE, BACKLOG, SHAPES, arrivals, policies
from benchmarks.harness.report import machine, options, save, table
from client.experiment import Experiment
from model import LoadOptions, load_model
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work

FACTORS = (1.05, 1.15, 1.3, 1.5, 2.0)
WARM_UP_S = 0.5
COLUMNS = (
    "load | shape | policy | requests | TTFT p50 | p99 (95 %) | TPOT p50 | p99 (95 %) "
    "| deferred tokens/s | of the spare capacity | of what the curve allows"
)


def measure(bench: Bench, args: argparse.Namespace) -> tuple[float, list[Cell]]:
    """Tokens/s of deferred requests alone, and the measurements."""
    predictor = Predictor()
    bench.play(Orca(), [], WARM_UP_S, BACKLOG, predictor, args.seed)
    only = bench.play(Orca(), [], args.calibrate, BACKLOG, predictor, args.seed)
    capacity = only.deferred_tokens_per_s / only.mean_output
    every = policies(args.factors, args.max_step_ms / 1000)

    def work(shape: str, load: float, number: int) -> tuple[int, list[float], Predictor]:
        """Seed and arrivals of a round, and what a run without deferred requests has learnt."""
        seed, learnt = args.seed + number, copy.deepcopy(predictor)
        times = arrivals(shape, load * capacity, args.seconds, seed)
        bench.play(Orca(), times, args.seconds, 0, learnt, seed)
        return seed, times, learnt

    def turn(name: str, of: tuple[int, list[float], Predictor]) -> Measured:
        seed, times, learnt = of
        own, backlog = copy.deepcopy(learnt), 0 if name in ALONE else BACKLOG
        return bench.play(every[name](own), times, args.seconds, backlog, own, seed)

    order = [*(name for name in every if name != ALONE[1]), ALONE[1]]
    sides, cells = {name: partial(turn, name) for name in order}, []
    for load in args.loads:
        for shape in args.shapes:
            experiment = Experiment(sides, {}, "alone", partial(work, shape, load))
            turns = experiment.run(args.rounds, f"{shape} at {load:.0%}").turns
            for number in range(args.rounds):
                cells.append(Cell(shape, load, {name: turns[name][number] for name in every}))
    return only.deferred_tokens_per_s, cells


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=None, model="embedded", dtype="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, default=32, help="batch limit")
    parser.add_argument("--rounds", type=int, help="default: 4; for other models 1")
    parser.add_argument("--seconds", type=float, help="seconds per run; default: 4, or 10")
    parser.add_argument(
        "--calibrate", type=float, help="seconds of deferred requests alone; default: 10, or 30"
    )
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS)
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    defaults = (4, 4.0, 10.0) if args.model == "embedded" else (1, 10.0, 30.0)
    for name, value in zip(("rounds", "seconds", "calibrate"), defaults, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    model = load_model(LoadOptions("dynamic", args.model, args.device, args.dtype, 0, args.limit))
    model.warm_up()
    sizes = Sizes() if args.model == "embedded" else SHORT
    clock = RealClock()
    bench = Bench(model, model.vocab_size, clock, args.limit, sizes)
    only, cells = measure(bench, args)
    name = "deferred" if args.model == "embedded" else f"deferred-{args.model.split(':')[-1]}"
    title = (
        f"{args.model}, {args.dtype}, batch limit {args.limit}, prompts of {sizes.prompt[0]} to "
        f"{sizes.prompt[1]} tokens, {sizes.output[0]} out on average, {args.rounds} rounds of "
        f"{args.seconds:g} s"
    )
    found = points(cells, only, args.factors, args.limit)
    curves = [cell.curve() for cell in cells]
    step_ms = {
        n: 1000 * float(np.median([c.seconds(Work(n, n, n, 64 * n, 64 * n)) for c in curves]))
        for n in (1, 2, 4, 8, 16, 32)
    }
    r2 = float(np.median([curve.r2 for curve in curves]))
    times = ", ".join(f"{ms:.1f}" for ms in step_ms.values())
    rows = [row(point) for point in found if point.policy != "alone"]
    card = (
        f"{title}, on {machine()}. Deferred requests alone: {only:.0f} tokens/s. Step time at 1, "
        f"2, 4, 8, 16, 32 decodes of 64 tokens: {times} ms (R2 {r2:.3f}).\n\n{table(COLUMNS, rows)}"
    )
    figures = {
        "title": title, "deferred_only_tokens_per_s": only, "step_ms": step_ms, "r2": r2,
        "points": [asdict(point) for point in found],
    }  # fmt: skip
    save(figures, card, args.out, name)


def row(p: Point) -> tuple[str, ...]:
    return (
        f"{p.load:.0%}", p.shape, p.policy, f"{p.requests}", f"{p.ttft_p50.value:.2f}",
        _told(p.ttft_p99), f"{p.tpot_p50.value:.2f}", _told(p.tpot_p99),
        f"{p.deferred_tokens_per_s:.0f}", f"{p.of_spare:.0%}",
        "" if p.of_allowed is None else format(p.of_allowed, ".0%"),
    )  # fmt: skip


def _told(ratio: Relative) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


if __name__ == "__main__":
    main()
