"""What a server delivers beyond its limit: output tokens a second at higher and higher load.

    python -m benchmarks.overload [--modes nobatch static dynamic] [--loads 1.2 2 14]

Each mode's server is measured alone. Its limit comes from a closed loop of 64 users, as in
`./compare.sh`. Then runs at multiples of that limit alternate; the last load is the highest one of
a comparison, so for nobatch it is 13 to 16 times the limit. Ratios are relative to the first load:
geometric means over the rounds, of which there are more until the 95 % interval is within 3 %.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.turns import Ratio, ratio
from client.analysis.requests import table_of, tokens_between
from client.comparison.fleet import Fleet
from client.comparison.limits import knee
from client.load.servers.stats import settled_stats
from client.load.servers.system import System, server_command
from client.workloads.recipe import Recipe, make

MODES = ("nobatch", "static", "dynamic")
RECIPE = Recipe(output_tokens="normal:50,25,1,100", exact_duration=True)  # compare.sh's
HIGHEST = 2.0  # x the largest limit of all modes: where compare.sh compares the limits
LEAST_ROUNDS = 8
WITHIN = 0.03
RUN_S = 4.0
SETTLE_S = 1.0  # of a run, not counted
KNEE_S = 4.0  # of the closed loop that finds a limit


def delivered(fleet: Fleet, system: System, rate: float, seed: int) -> float:
    """Output tokens a second at this rate of requests, once the queue has formed."""
    server = fleet.server(system)
    settled_stats(server.target)
    workload = make(replace(RECIPE, requests=max(3, round(rate * RUN_S)), rate=rate, seed=seed))
    run = fleet.crew.play(workload, server.target, drain_s=0.0)
    failed = [o.failure for o in run.outcomes if o.failure is not None and not o.unfinished]
    if failed:
        raise SystemExit(f"{system.name} at {rate:.3g} requests/s: {failed[0]}")
    return tokens_between(table_of(run.outcomes), SETTLE_S, RUN_S) / (RUN_S - SETTLE_S)


def narrow(found: Ratio) -> bool:
    low, high = found.low, found.high
    return low is not None and high is not None and math.sqrt(high / low) <= 1 + WITHIN


def measured(
    fleet: Fleet, system: System, rates: Sequence[float], rounds: int
) -> tuple[list[list[float]], list[Ratio]]:
    """By rate, the tokens a second of each round, and the ratios to the first rate."""
    figures: list[list[float]] = [[] for _ in rates]
    for number in range(max(2, rounds)):
        order = range(len(rates))
        for i in order if number % 2 == 0 else reversed(order):
            figures[i].append(delivered(fleet, system, rates[i], seed=number))
        if number + 1 >= min(LEAST_ROUNDS, rounds):
            ratios = [ratio(one, figures[0]) for one in figures[1:]]
            if all(map(narrow, ratios)):
                break
    return figures, ratios


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=24)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument(
        "--loads", nargs="+", type=float, default=(1.2, 2.0),
        help="multiples of a mode's own limit (default: 1.2 2); the highest load is added",
    )  # fmt: skip
    args = parser.parse_args(argv)
    systems = [System(mode, server_command(mode, "embedded", ()), None) for mode in args.modes]
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as logs,
        Fleet(RECIPE, Path(logs), 300.0, together=True) as fleet,
    ):
        fleet.start(systems)
        limits = {one.name: knee(one, fleet, RECIPE, KNEE_S) for one in systems}
        highest = HIGHEST * max(limits.values())
        for one in systems:
            limit = limits[one.name]
            rates = [load * limit for load in args.loads]
            if highest > 1.1 * max(rates):
                rates.append(highest)
            figures, ratios = measured(fleet, one, rates, args.rounds)
            found[one.name] = {
                "limit": limit,
                "loads": [rate / limit for rate in rates],
                "tokens_per_s": figures,
                "ratios": [asdict(r) for r in ratios],
            }
    save({"overload": found}, card(found), args.out, "overload")


def card(found: dict[str, Any]) -> str:
    rows = []
    for mode, one in found.items():
        shares = [
            "",
            *(f"{r['value']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for r in one["ratios"]),
        ]
        for load, figures, share in zip(one["loads"], one["tokens_per_s"], shares, strict=True):
            middle = sorted(figures)[len(figures) // 2]
            rows.append((mode, f"{load:.1f}", f"{middle:.0f} ({len(figures)} rounds)", share))
    columns = "mode | load / its limit | tokens/s, median of rounds | / the first load"
    return f"Output tokens/s beyond a mode's limit, on {machine()}\n\n{table(columns, rows)}"


if __name__ == "__main__":
    main()
