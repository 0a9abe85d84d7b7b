"""How much deferred requests delay immediate ones, and how much capacity they use: a trade-off
curve.

    python -m benchmarks.deferred    # some 20 minutes

One process, the bare loop in real time, the same weights and, in each round, the same arrivals
under every policy: immediate requests at shares of the measured capacity (Poisson, and the burst
shapes `medium` and `high` of the load generator), and an endless backlog of deferred requests of
the same sizes. `alone` runs without the backlog. Ratios are relative to it, round by round: their
geometric mean and its 95 % interval, for each shape, and as `all` over all shapes. `alone again`
repeats `alone` at the other end of each round: the distance of its ratios from 1 is noise. The
spare capacity is the rate of deferred requests alone minus the rate of immediate ones.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import mean

from benchmarks.bare import loaded
from benchmarks.deferred.play import (
    ALONE,
    BACKLOG,
    LATENCIES,
    METRICS,
    SHAPES,
    Bench,
    Measured,
    Sizes,
    arrivals,
    policies,
)
from benchmarks.harness.report import options, report, table
from benchmarks.harness.turns import ratio
from client.experiment import Experiment, Found
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work

FACTORS = (1.05, 1.15, 1.3, 1.5, 2.0)
WARM_UP_S = 0.5
STEPS = (1, 2, 4, 8, 16, 32)  # decodes
COLUMNS = (
    "load | shape | policy | requests: | TTFT p50: | p99 (95 %) | TPOT p50: | p99 (95 %) "
    "| deferred tokens/s: | of the spare capacity:"
)


def measure(
    bench: Bench, args: argparse.Namespace, predictor: Predictor
) -> tuple[float, list[Found]]:
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
    found = []
    for load, shape in product(args.loads, args.shapes):
        of = {"load": f"{load:.0%}", "shape": shape}
        experiment = Experiment(sides, METRICS, "alone", partial(work, shape, load), of)
        found.append(experiment.run(args.rounds, f"{shape} at {load:.0%}"))
    return only.deferred_tokens_per_s, found


def compared(found: Sequence[Found], only: float) -> Iterator[tuple[str, ...]]:
    """Rows of COLUMNS. ``only``: tokens a second of deferred requests alone. The tail of one shape
    would dominate a common p99, so `all` is a mean of ratios."""
    kinds = {
        (str(one.experiment.of["load"]), str(one.experiment.of["shape"])): [one] for one in found
    }
    for one in found:
        kinds.setdefault((str(one.experiment.of["load"]), "all"), []).append(one)
    for kind, its in kinds.items():

        def figures(side: str, metric: str) -> list[float]:
            return [figure for one in its for figure in one.figures(side, metric)]  # noqa: B023

        spare = only - mean(figures("alone", "immediate_per_s"))
        for policy in its[0].turns:
            if policy == "alone":
                continue
            to_alone = {m: ratio(figures(policy, m), figures("alone", m)) for m in LATENCIES}
            used = mean(figures(policy, "deferred_per_s"))
            yield (
                *kind, policy, f"{sum(figures(policy, 'requests')):.0f}",
                f"{to_alone['ttft_p50_s'].value:.2f}", f"{to_alone['ttft_p99_s']}",
                f"{to_alone['tpot_p50_s'].value:.2f}", f"{to_alone['tpot_p99_s']}",
                f"{used:.0f}", f"{used / spare:.0%}",
            )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=4, model="embedded", dtype="float32")
    parser.add_argument("--limit", type=int, default=32, help="batch limit")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a run (default: 4)")
    parser.add_argument(
        "--calibrate", type=float, default=10.0, help="seconds of deferred requests alone (10)"
    )
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS)
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    model = loaded(args.model, args.dtype, args.limit, device="auto")
    sizes, predictor = Sizes(), Predictor()
    only, found = measure(Bench(model, model.vocab_size, args.limit, sizes), args, predictor)
    title = (
        f"{args.model}, {args.dtype}, batch limit {args.limit}, prompts of {sizes.prompt[0]} to "
        f"{sizes.prompt[1]} tokens, {sizes.output[0]} out on average, {args.rounds} rounds of "
        f"{args.seconds:g} s"
    )
    step_ms = {n: 1000 * (predictor.seconds(Work(n, n, n, 64 * n, 64 * n)) or 0.0) for n in STEPS}
    times = ", ".join(f"{ms:.1f}" for ms in step_ms.values())
    also = (
        f"Deferred requests alone: {only:.0f} tokens/s. Step time at {', '.join(map(str, STEPS))} "
        f"decodes of 64 tokens: {times} ms.\n\n{table(COLUMNS, compared(found, only))}"
    )
    report(
        found, title, args.out, "deferred", also, deferred_only_tokens_per_s=only, step_ms=step_ms
    )


if __name__ == "__main__":
    main()
