"""The largest rate at which a server meets objectives: ``python -m client.capacity``.

Per seed one sample path, scaled in time: doubling until too few requests are good, then bisection
(as Vidur's and DistServe's goodput search). The answer is a bracket per seed and an interval over
seeds; failed and unfinished requests are not good.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import requests

from client.experiment import MODES, Calibration, Contestant, adapted, calibrate, server_command
from client.gates import FAILED, INVALID_CLIENT, judge
from client.live import live_view, say
from client.machine import commit, machine, versions
from client.metrics import Objectives, measure, parse_objectives
from client.play import play
from client.recipe import Recipe, add_shape_options, make, recipe_from
from client.servers import ServerError
from client.spec import SpecError
from client.statistics import Interval, mean_interval
from client.target import Target, parse_target


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried. ``good`` is the share of requests that met the objectives."""

    seed: int
    rate: float
    good: float
    passed: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class Bracket:
    """The highest rate that passed and the lowest that failed, of one seed."""

    seed: int
    passed: float
    failed: float


class ClientLimitError(RuntimeError):
    """The client itself could not keep up, so that nothing can be said of the server."""


def bracket(seed: int, start: float, precision: float, probe: Callable[[float], bool]) -> Bracket:
    """Doubling (or halving) from ``start``, then bisection until failed/passed <= 1 + precision."""
    rate = start
    if probe(rate):
        while probe(2 * rate):
            rate *= 2
        passed, failed = rate, 2 * rate
    else:
        while not probe(rate / 2):
            rate /= 2
            if rate < start / 2**12:
                raise SpecError(
                    f"the objectives are not met at {rate:.3g} requests/s either; loosen them"
                )
        passed, failed = rate / 2, rate
    while failed / passed > 1 + precision:
        middle = math.sqrt(passed * failed)
        passed, failed = (middle, failed) if probe(middle) else (passed, middle)
    return Bracket(seed, passed, failed)


def over_seeds(brackets: Sequence[Bracket]) -> Interval:
    """Geometric mean of the brackets' middles and its t interval over seeds."""
    logs = mean_interval([math.log(b.passed * b.failed) / 2 for b in brackets])
    return Interval(
        math.exp(logs.value),
        None if logs.low is None else math.exp(logs.low),
        None if logs.high is None else math.exp(logs.high),
    )


@dataclass(slots=True)
class _Search:
    """Plays probes and remembers them."""

    target: Target
    recipe: Recipe
    objectives: Objectives
    share: float
    drain_s: float | None
    least_s: float
    probes: list[Probe]

    def probe(self, seed: int, rate: float) -> bool:
        # A queue that still fits the objectives must have had the time to outgrow them.
        count = max(self.recipe.requests or 1, math.ceil(rate * self.least_s))
        workload = make(replace(self.recipe, requests=count, rate=rate, seed=seed))
        for _ in range(3):
            title = f"seed {seed}, {rate:.3g} requests/s"
            with live_view(title, len(workload.requests), leave=False) as watch:
                run = play(workload, self.target, drain_s=self.drain_s, watch=watch)
            if run.interrupted:
                raise KeyboardInterrupt
            measured = measure(run, self.objectives)
            verdict = judge(run, measured)
            good = measured.attained or 0.0
            passed = good >= self.share
            # A late client only adds to latencies counted from the intended time, so what
            # passes in spite of it passes.
            if passed or verdict.word != INVALID_CLIENT:
                break
        if verdict.word == FAILED:
            raise ServerError(verdict.reason)
        if not passed and verdict.word == INVALID_CLIENT:
            raise ClientLimitError(f"at {rate:.3g} requests/s: {verdict.reason}")
        self.probes.append(Probe(seed, rate, good, passed, verdict.word))
        say(f"{title}: {good:.1%} good, {'passed' if passed else 'failed'} ({verdict.word})")
        return passed


def relative_objectives(calibration: Calibration, multiple: float) -> Objectives:
    """TTFT and TPOT of a request alone, times ``multiple``: the same demand on any machine."""
    return Objectives(
        ttft_s=multiple * calibration.ttft_s, tpot_s=multiple * calibration.isolated.output_s
    )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m client.capacity",
        description="Find the largest request rate at which a share of the requests meets the "
        "objectives.",
        epilog="Options after -- go to server.sh, e.g. -- --max-batch-size 32",
    )
    where = p.add_mutually_exclusive_group(required=True)
    where.add_argument("--mode", choices=MODES, help="start ./server.sh MODE")
    where.add_argument("--target", help="a server that runs: as for client.py")
    p.add_argument("--model", default="embedded", help="of --mode (embedded)")
    p.add_argument("--slo", metavar="ttft:S,tpot:S,e2e:S", help="objectives in seconds")
    p.add_argument(
        "--slo-multiple", type=float, default=5.0,
        help="without --slo: TTFT and TPOT at most so many times those of a request alone (5)",
    )  # fmt: skip
    p.add_argument("--share", type=float, default=0.9, help="share that must be good (0.9)")
    p.add_argument(
        "--requests",
        type=int,
        default=100,
        help="requests of a probe, more where they would be over too soon to tell (100)",
    )
    p.add_argument("--seeds", type=int, default=3, help="sample paths (3)")
    p.add_argument("--seed", type=int, default=0, help="first seed (0)")
    p.add_argument("--precision", type=float, default=0.05, help="width of the bracket (0.05)")
    p.add_argument("--calibrate-s", type=float, default=10.0, help="measure a request alone (10)")
    p.add_argument(
        "--start-s", type=float, default=600.0, help="how long a server may take to start (600)"
    )
    p.add_argument("--json", action="store_true", help="print all figures as JSON")
    p.add_argument("server_options", nargs="*", help=argparse.SUPPRESS)
    add_shape_options(p, Recipe())
    return p


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    try:
        recipe = recipe_from(args, requests=args.requests, rate=1.0)
        recipe = replace(recipe, exact_duration=True)
        objectives = parse_objectives(args.slo) if args.slo else None
        if recipe.arrivals.startswith(("closed", "burst")):
            raise SpecError("capacity needs arrivals that have a rate")
        if not 0 < args.share <= 1 or not args.precision > 0 or args.seeds < 1:
            raise SpecError("--share must be in (0, 1], --precision > 0, --seeds at least 1")
        if not args.slo_multiple > 0:
            raise SpecError("--slo-multiple must be > 0")
        make(recipe)
        target = parse_target(args.target) if args.target else None
    except SpecError as error:
        p.error(str(error))
    name = args.mode or (target.name if target else "")
    command = server_command(args.mode, args.model, args.server_options) if args.mode else None
    contestant = Contestant(name, command, target)
    try:
        return _search(args, contestant, recipe, objectives)
    except (ServerError, SpecError, ClientLimitError, requests.RequestException) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _search(
    args: argparse.Namespace, contestant: Contestant, recipe: Recipe, objectives: Objectives | None
) -> int:
    probes: list[Probe] = []
    with tempfile.TemporaryDirectory() as folder:
        say(f"measuring a request alone on {contestant.name}")
        alone = calibrate(contestant, recipe, Path(folder), args.start_s, args.calibrate_s)
        objectives = objectives or relative_objectives(alone, args.slo_multiple)
        say(f"objectives: {_objectives_text(objectives)}; {args.share:.0%} must meet them")
        longest = float(np.max([r.output_tokens for r in make(recipe).requests]))
        with contestant.open(Path(folder), args.start_s) as target:
            search = _Search(
                adapted(target), recipe, objectives, args.share,
                _latest_good_end(objectives, longest),
                10 * max(alone.longest_s, objectives.ttft_s or 0.0, objectives.e2e_s or 0.0),
                probes,
            )  # fmt: skip
            brackets = [
                bracket(seed, alone.capacity, args.precision, lambda r, s=seed: search.probe(s, r))  # type: ignore[misc]
                for seed in range(args.seed, args.seed + args.seeds)
            ]
    found = over_seeds(brackets)
    if args.json:
        figures = {
            "capacity": asdict(found),
            "brackets": [asdict(b) for b in brackets],
            "probes": [asdict(x) for x in probes],
            "objectives": asdict(objectives),
            "share": args.share,
            "alone": asdict(alone),
            "recipe": asdict(recipe),
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
        }
        print(json.dumps(figures))
        return 0
    for b in brackets:
        print(f"seed {b.seed}: passed {b.passed:.4g}, failed {b.failed:.4g} requests/s")
    interval = ""
    if found.low is not None and found.high is not None:
        interval = f" [{found.low:.4g}, {found.high:.4g}]"
    print(
        f"capacity of {contestant.name}: {found.value:.4g}{interval} requests/s (95 % over seeds)"
    )
    return 0


def _latest_good_end(objectives: Objectives, longest_tokens: float) -> float | None:
    """After that long a request cannot be good any more, so nobody need wait for it."""
    if objectives.e2e_s is not None:
        return objectives.e2e_s
    if objectives.ttft_s is not None and objectives.tpot_s is not None:
        return objectives.ttft_s + objectives.tpot_s * longest_tokens
    return None


def _objectives_text(objectives: Objectives) -> str:
    parts = (
        ("TTFT", objectives.ttft_s), ("TPOT", objectives.tpot_s), ("E2E", objectives.e2e_s)
    )  # fmt: skip
    return ", ".join(f"{name} <= {value:.4g} s" for name, value in parts if value is not None)


if __name__ == "__main__":
    sys.exit(main())
