"""What a server delivers beyond its limit: output tokens a second at higher and higher load.

    python -m benchmarks.overload [--modes nobatch static dynamic] [--loads 1.2 2 14]

Each mode's server is measured alone. Its limit comes from a closed loop of 64 users, as in
`./compare.sh`. Then runs at multiples of that limit alternate; the last load is the highest one of
a comparison, so for nobatch it is 13 to 16 times the limit. Ratios are relative to the first load:
geometric means over the rounds, of which there are more until the 95 % interval is within 3 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.harness.report import options, report
from benchmarks.harness.turns import ratio_of
from client.analysis.figures import table_of, tokens_between
from client.comparison.fleet import Fleet
from client.comparison.runs import knee
from client.experiment import Experiment, Found
from client.load.servers.processes import MODES, System, server_command
from client.workloads.recipe import Recipe, make

RECIPE = Recipe(output_tokens="normal:50,25,1,100", exact_duration=True)  # compare.sh's
HIGHEST = 2.0  # x the largest limit of all modes: where compare.sh compares the limits
LEAST_ROUNDS = 8
WITHIN = 0.03
RUN_S = 4.0  # or longer where the machine is busy: three batches, whose tokens come at their end
BATCHES, ROWS = 3, {"nobatch": 1, "static": 32, "dynamic": 32}
SETTLE_S = 1.0  # of a run, not counted
KNEE_S = 4.0  # of the closed loop that finds a limit


def delivered(fleet: Fleet, system: System, rate: float, run_s: float, seed: int) -> float:
    """Output tokens a second at this rate of requests, once the queue has formed."""
    workload = make(replace(RECIPE, requests=max(3, round(rate * run_s)), rate=rate, seed=seed))
    run = fleet.play(system, workload, f"{rate:.3g} requests/s", drain_s=0.0)
    failed = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failed:
        raise SystemExit(f"{system.name} at {rate:.3g} requests/s: {failed[0]}")
    return tokens_between(table_of(run.outcomes), SETTLE_S, run_s) / (run_s - SETTLE_S)


def certain(rounds: int, found: Found) -> bool:
    """Whether every ratio is within 3 %, after eight rounds or more."""
    first, *others = found.turns
    if len(found.turns[first]) < min(LEAST_ROUNDS, rounds):
        return False
    ratios = [ratio_of(found, side) for side in others]
    return all(r.low and r.high and math.sqrt(r.high / r.low) <= 1 + WITHIN for r in ratios)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=24)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument(
        "--loads", nargs="+", type=float, default=(1.2, 2.0),
        help="multiples of a mode's own limit (default: 1.2 2); the highest load is added",
    )  # fmt: skip
    args = parser.parse_args(argv)
    systems = [System(mode, server_command(mode, "embedded", ()), None) for mode in args.modes]
    found: list[Found] = []
    with Fleet(RECIPE, None, 300.0, together=True) as fleet:
        fleet.start(systems)
        limits = {one.name: knee(one, fleet, KNEE_S) for one in systems}
        highest = HIGHEST * max(limits.values())
        for one in systems:
            limit = limits[one.name]
            rates = [load * limit for load in args.loads]
            if highest > 1.1 * max(rates):
                rates.append(highest)
            run_s = max(RUN_S, BATCHES * ROWS[one.name] / limit)
            sides = {
                f"{rate / limit:.1f}": partial(delivered, fleet, one, rate, run_s) for rate in rates
            }
            experiment = Experiment(
                sides, {"tokens_per_s": float}, next(iter(sides)), of={"mode": one.name}
            )
            found.append(experiment.run(args.rounds, enough=partial(certain, args.rounds)))
    report(
        found, "Beyond a mode's limit; a side is a load, in multiples of it", args.out, "overload",
        limits=limits,
    )  # fmt: skip


if __name__ == "__main__":
    main()
