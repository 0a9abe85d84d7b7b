"""The largest rate at which a server meets objectives: ``python -m client.capacity``.

Per seed one sample path, scaled in time: doubling until too few requests are good, then bisection
(like the goodput search of Vidur and DistServe). The answer is a bracket per seed and an interval
over seeds; failed and unfinished requests are not good, and a rate that saturates the server fails.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from client.analysis.comparison.results import Calibration
from client.analysis.gates import (
    FAILED,
    INVALID_CLIENT,
    LAG,
    TOKENS,
    VALID,
    judge,
    keeping_up,
    void_of,
)
from client.analysis.metrics import Objectives, RunFigures, measure, parse_objectives
from client.analysis.statistics import Interval, excludes, exponential, mean_interval
from client.comparison.fleet import Fleet
from client.comparison.runs import calibrate, knee
from client.load.http.target import parse_target
from client.load.live import say
from client.load.machine import commit, machine, versions
from client.load.servers.processes import MODES, ServerError, System, end_as_ctrl_c, server_command
from client.load.servers.stats import described, stats
from client.load.workers import WorkerError
from client.options.rules import add_common_options, check, declare, varied_recipe
from client.report.tables import Table, rendered
from client.report.words import contained, objectives_text
from client.workloads.recipe import Recipe, make, used
from client.workloads.spec import SpecError

_DEFAULTS = Recipe(exact_duration=True)
PLAYS = 5  # of a rate near the threshold; they are then judged together
_START = 0.7  # of the limit, where a search begins


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried: the share of the requests ``asked`` that met the objectives."""

    seed: int
    rate: float
    asked: int
    good: float
    verdict: str
    plays: int

    def passes(self, share: float) -> bool:
        return self.verdict == VALID and self.good >= share

    def decided(self, share: float) -> bool:
        """Whether another run is needless: the binomial interval excludes the share."""
        return self.verdict != VALID or excludes(self.good * self.asked, self.asked, share)


def tried(seed: int, rate: float, played: Sequence[tuple[RunFigures, str]]) -> Probe:
    """All runs of one rate together."""
    asked = max(sum(m.arrived for m, _ in played), 1)
    good = sum((m.attained or 0.0) * m.arrived for m, _ in played) / asked
    failed = any(word == FAILED for _, word in played)
    word = FAILED if failed else keeping_up([m for m, _ in played]).verdict
    return Probe(seed, rate, asked, good, word, len(played))


@dataclass(frozen=True, slots=True)
class SeedBracket:
    """The highest rate that passed and the lowest that failed, of one seed."""

    seed: int
    passed: float
    failed: float


class SearchError(RuntimeError):
    """Why a search ended without an answer; ``verdict`` in the words of the gates."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


def bracket(
    seed: int, start: float, precision: float, probe: Callable[[float], bool]
) -> SeedBracket:
    """Doubling (or halving) from ``start``, then bisection until failed/passed <= 1 + precision.

    If a probe is undecided, the bracket stays as wide as it is.
    """
    rate = start
    if probe(rate):
        while probe(2 * rate):
            rate *= 2
        passed, failed = rate, 2 * rate
    else:
        while not probe(rate / 2):
            rate /= 2
            if rate < start / 2**12:
                raise SearchError(
                    VALID,
                    f"the objectives are not met at {rate:.3g} requests/s either; loosen them",
                )
        passed, failed = rate / 2, rate
    while failed / passed > 1 + precision:
        middle = math.sqrt(passed * failed)
        try:
            passed, failed = (middle, failed) if probe(middle) else (passed, middle)
        except SearchError:
            break
    return SeedBracket(seed, passed, failed)


def over_seeds(brackets: Sequence[SeedBracket]) -> Interval:
    """Geometric mean of the brackets' middles and its t interval over seeds."""
    return exponential(mean_interval([math.log(b.passed * b.failed) / 2 for b in brackets]))


@dataclass(slots=True)
class Findings:
    """What a search has found so far. ``reason`` says why it ended early, if it did."""

    system: System
    recipe: Recipe
    objectives: Objectives | None
    share: float
    precision: float
    alone: Calibration | None = None
    server: dict[str, Any] | None = None
    probes: list[Probe] = field(default_factory=list)
    brackets: list[SeedBracket] = field(default_factory=list)
    verdict: str = VALID
    reason: str | None = None

    def as_text(self) -> str:
        """The report for people: what was tried, the brackets, and the capacity where it is."""
        rows = [
            (str(p.seed), f"{p.rate:.4g}", f"{p.good:.1%}", _word(p.passes(self.share)),
             p.verdict, str(p.plays))
            for p in self.probes
        ]  # fmt: skip
        head = ("seed", "requests/s", "good", "", "verdict", "plays")
        return rendered(
            "capacity.txt.j2",
            f=self,
            server=described(self.server),
            objectives=self.objectives and objectives_text(self.objectives),
            probes=Table(head, rows, left=0),
            widest=(1 + self.precision) * (1 + 1e-9),  # of a search that was not cut short
            capacity=over_seeds(self.brackets) if self.brackets else None,
            contained=contained(self.recipe.arrivals),
        ).rstrip()

    def figures(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "capacity": asdict(over_seeds(self.brackets)) if self.brackets else None,
            "verdict": self.verdict,
            "reason": self.reason,
            "brackets": [asdict(b) for b in self.brackets],
            "probes": [{**asdict(p), "passed": p.passes(self.share)} for p in self.probes],
            "objectives": None if self.objectives is None else asdict(self.objectives),
            "share": self.share,
            "alone": None if self.alone is None else asdict(self.alone),
            "recipe": used(self.recipe),
            "server": self.server,
            "machine": machine(),
            "versions": versions(),
            "commit": commit(),
        }


def probe(
    found: Findings, fleet: Fleet, requests: int, drain_s: float | None, seed: int, rate: float
) -> bool:
    """Whether the rate passes: repeated until the binomial interval excludes the share. All probes
    of a seed are one path, scaled in time. A run of a late client, whose goodput is void, does not
    count.
    """
    system, share, objectives = found.system, found.share, found.objectives
    assert objectives is not None  # known before the first probe
    workload = make(replace(found.recipe, requests=requests, rate=rate, seed=seed), fleet.words)
    title = f"seed {seed}, {rate:.3g} requests/s"
    played: list[tuple[RunFigures, str]] = []
    reason = ""
    for _ in range(PLAYS):
        run = fleet.play(system, workload, title, drain_s=drain_s)
        measured = measure(run, objectives)
        verdict = judge(run, measured)
        gates = {gate.name: gate for gate in verdict.gates}
        late = void_of(gates[LAG].voids, "goodput")
        if verdict.word == INVALID_CLIENT or late:
            reason = late.reason if late else verdict.reason
            continue
        if gates[TOKENS].voids and objectives != Objectives(e2e_s=objectives.e2e_s):
            raise SearchError(INVALID_CLIENT, f"at {rate:.3g} requests/s: {gates[TOKENS].found}")
        played.append((measured, verdict.word))
        if tried(seed, rate, played).decided(share):
            break
    if not played:
        raise SearchError(INVALID_CLIENT, f"at {rate:.3g} requests/s: {reason}")
    found.probes.append(one := tried(seed, rate, played))
    say(f"{title}: {one.good:.1%} good, {_word(one.passes(share))} ({one.verdict})")
    fleet.server(system)  # one that refuses requests is alive, and the rate too high
    return one.passes(share)


def _word(passed: bool) -> str:
    return "passed" if passed else "failed"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m client.capacity",
        description="Find the largest request rate at which a share of the requests meets the "
        "objectives.",
        epilog="Options after -- go to server.sh, e.g. -- --max-batch-size 32",
    )
    where = p.add_mutually_exclusive_group(required=True)
    where.add_argument("--mode", choices=MODES, help="start ./server.sh MODE")
    where.add_argument("--target", help="a running server, as for client.py")
    declare(p, "capacity", requests=100, seeds=3, precision=0.05)
    add_common_options(p, _DEFAULTS, calibrate_s=10.0)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    try:
        check(args)
        recipe = varied_recipe(args, _DEFAULTS, requests=args.requests)
        objectives = parse_objectives(args.slo) if args.slo else None
        target = parse_target(args.target) if args.target else None
    except SpecError as error:
        p.error(str(error))
    end_as_ctrl_c()
    if target is None:
        command = server_command(args.mode, args.model or "embedded", args.server_options)
        system = System(args.mode, command)
    else:
        system = System(target.name, None, target)
    found = Findings(system, recipe, objectives, args.share, args.precision)
    try:
        _search(args, found)
    except (ServerError, SearchError, WorkerError) as error:
        own = INVALID_CLIENT if isinstance(error, WorkerError) else FAILED
        found.verdict = error.verdict if isinstance(error, SearchError) else own
        found.reason = str(error)
    except KeyboardInterrupt:
        found.reason = "interrupted"
    if found.reason is not None:
        say(f"error: {found.reason}")
    print(json.dumps(found.figures()) if args.json else found.as_text())
    return 0 if found.reason is None else 130 if found.reason == "interrupted" else 1


def _search(args: argparse.Namespace, found: Findings) -> None:
    """Fill ``found``, so that a search that ends early keeps its findings."""
    system, recipe = found.system, found.recipe
    with Fleet(recipe, None, args.start_s, together=False) as fleet:
        say(f"measuring a request alone on {system.name}")
        alone = calibrate(system, fleet, args.calibrate_s)
        found.alone = alone
        objectives = found.objectives or alone.objectives(args.slo_multiple or 5.0)
        found.objectives = objectives
        say(f"objectives: {objectives_text(objectives)}; {args.share:.0%} must meet them")
        found.server = stats(fleet.server(system).target)
        limit = knee(system, fleet, max(args.calibrate_s, 6 * alone.longest_s))
        say(f"{system.name}: its limit is {limit:.3g} requests/s")
        # Long enough for a growing queue to exceed the objectives.
        least_s = 10 * max(alone.longest_s, objectives.ttft_s or 0.0, objectives.e2e_s or 0.0)
        requests = max(args.requests, math.ceil(limit * least_s))
        seeds = range(args.seed, args.seed + args.seeds)
        samples = [make(replace(recipe, requests=requests, seed=seed)) for seed in seeds]
        longest = max(r.output_tokens for sample in samples for r in sample.requests)
        if note := samples[0].generator.get("trace"):
            say(f"each seed plays {note}")
        latest = _latest_good_end(objectives, longest)
        drain_s = None if latest is None else max(latest, 5 * alone.longest_s)
        for seed in seeds:
            passes = partial(probe, found, fleet, requests, drain_s, seed)
            found.brackets.append(bracket(seed, _START * limit, args.precision, passes))


def _latest_good_end(objectives: Objectives, longest_tokens: float) -> float | None:
    """The time after which a request cannot meet the objectives, so waiting longer is useless."""
    if objectives.e2e_s is not None:
        return objectives.e2e_s
    if objectives.ttft_s is not None and objectives.tpot_s is not None:
        return objectives.ttft_s + objectives.tpot_s * longest_tokens
    return None


if __name__ == "__main__":
    sys.exit(main())
