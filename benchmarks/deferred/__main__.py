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
immediate ones.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product

from benchmarks.bare import loaded
from benchmarks.deferred.play import (
    ALONE,
    BACKLOG,
    SHAPES,
    SHORT,
    Bench,
    Measured,
    Sizes,
    arrivals,
    policies,
)
from benchmarks.deferred.points import Point, Relative, Turns, points
from benchmarks.harness.report import file_name, here, options, save, table
from client.experiment import Experiment
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work

FACTORS = (1.05, 1.15, 1.3, 1.5, 2.0)
WARM_UP_S = 0.5
STEPS = (1, 2, 4, 8, 16, 32)  # decodes
COLUMNS = (
    "load | shape | policy | requests | TTFT p50 | p99 (95 %) | TPOT p50 | p99 (95 %) "
    "| deferred tokens/s | of the spare capacity"
)


def measure(
    bench: Bench, args: argparse.Namespace, predictor: Predictor
) -> tuple[float, dict[tuple[str, float], Turns]]:
    """Tokens/s of deferred requests alone, and the measurements."""
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
    sides = {name: partial(turn, name) for name in order}
    found: dict[tuple[str, float], Turns] = {}
    for load, shape in product(args.loads, args.shapes):
        experiment = Experiment(sides, {}, "alone", partial(work, shape, load))
        turns = experiment.run(args.rounds, f"{shape} at {load:.0%}").turns
        found[shape, load] = {name: turns[name] for name in every}
    return only.deferred_tokens_per_s, found


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
    embedded = args.model == "embedded"
    defaults = (4, 4.0, 10.0) if embedded else (1, 10.0, 30.0)
    for name, value in zip(("rounds", "seconds", "calibrate"), defaults, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)
    model = loaded(args.model, args.dtype, args.limit, device=args.device)
    sizes, predictor = Sizes() if embedded else SHORT, Predictor()
    only, turns = measure(Bench(model, model.vocab_size, args.limit, sizes), args, predictor)
    title = (
        f"{args.model}, {args.dtype}, batch limit {args.limit}, prompts of {sizes.prompt[0]} to "
        f"{sizes.prompt[1]} tokens, {sizes.output[0]} out on average, {args.rounds} rounds of "
        f"{args.seconds:g} s"
    )
    found = points(turns, only)
    step_ms = {n: 1000 * (predictor.seconds(Work(n, n, n, 64 * n, 64 * n)) or 0.0) for n in STEPS}
    times = ", ".join(f"{ms:.1f}" for ms in step_ms.values())
    card = (
        f"{title}, on {here()}. Deferred requests alone: {only:.0f} tokens/s. Step time at "
        f"{', '.join(map(str, STEPS))} decodes of 64 tokens: {times} ms.\n\n"
        f"{table(COLUMNS, [row(point) for point in found if point.policy != 'alone'])}"
    )
    figures = {
        "title": title, "deferred_only_tokens_per_s": only, "step_ms": step_ms,
        "points": [asdict(point) for point in found],
    }  # fmt: skip
    name = "deferred" if embedded else f"deferred-{file_name(args.model.split(':')[-1])}"
    save(figures, card, args.out, name)


def row(p: Point) -> tuple[str, ...]:
    return (
        f"{p.load:.0%}", p.shape, p.policy, f"{p.requests}", f"{p.ttft_p50.value:.2f}",
        _told(p.ttft_p99), f"{p.tpot_p50.value:.2f}", _told(p.tpot_p99),
        f"{p.deferred_tokens_per_s:.0f}", f"{p.of_spare:.0%}",
    )  # fmt: skip


def _told(ratio: Relative) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


if __name__ == "__main__":
    main()
