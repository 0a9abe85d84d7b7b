"""The runs of a claim: policy and baseline on real servers, block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from client.analysis.gates import SATURATED, VALID, judge
from client.analysis.metrics import measure
from client.claims.catalogue import ROWS, Claim
from client.comparison.fleet import Fleet
from client.comparison.runs import saturated
from client.experiment import Experiment
from client.load.live import say
from client.load.machine import policy_sha256
from client.load.records import Run
from client.load.servers.processes import System, server_command
from client.load.servers.stats import described, stats
from client.workloads.recipe import Recipe
from client.workloads.traffic import Speed, Traffic, closed_loop, open_loop

PARTS = ("traffic", "calm")
CALM = 0.5  # of the length of the other runs
POLICY, BASELINE, CONTROL = "policy", "baseline", "control"
BLOCK = (BASELINE, POLICY, CONTROL)
_WARM_S = (3.0, 9.0, 27.0)
_LEAST_TOKENS = 8  # of each row, from which a speed follows
_WARM_REQUESTS = 1500
_SILENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Played:
    """``speed``: of the baseline with this traffic. ``servers`` describe themselves. ``turns``: the
    runs of each of `PARTS`, one per seed, by side: one of `BLOCK`. ``policy_sha256``: of its file,
    if it is module:Class."""

    claim: Claim
    model: str
    seconds: float
    speed: Speed
    servers: dict[str, str]
    turns: dict[str, Mapping[str, list[Run]]] = field(default_factory=dict)
    policy_sha256: str | None = None

    def blocks(self, part: str) -> list[dict[str, Run]]:
        """The seeds in which every run is sound."""
        sides = self.turns[part]
        found = [dict(zip(sides, runs, strict=True)) for runs in zip(*sides.values(), strict=True)]
        return [block for block in found if not any(map(unsound, block.values()))]


def unsound(run: Run) -> str | None:
    """Why its figures cannot be used."""
    verdict = judge(run, measure(run, None, 0.0))
    return None if verdict.word in (VALID, SATURATED) else verdict.reason


def play(
    claim: Claim,
    model: str,
    seconds: float,
    seeds: int,
    logs: Path,
    options: Sequence[str] = (),
    system: Callable[[str, Claim, str, Sequence[str]], System] | None = None,
) -> Played:
    """``system`` makes the server of a policy; None: this project's. Raises servers.ServerError for
    one that does not start or respond."""
    systems = {
        side: (system or served)(name, claim, model, options)
        for side, name in ((BASELINE, claim.baseline), (POLICY, claim.policy))
    }
    digest = policy_sha256(claim.policy)  # before its server reads the file
    warm = Recipe(prompts="words", prompt_tokens="uniform:4,64")
    with Fleet(warm, logs, 600.0, together=True) as fleet:
        fleet.start([*systems.values()])
        # the policy's step time is learnt as well
        speed, _ = (_speed(fleet, one, claim.traffic) for one in systems.values())
        say(
            f"{claim.policy} over {claim.baseline}, {model}: {speed.requests_per_s:.3g} requests/s "
            f"at the limit, {speed.request_s:.3g} s each, {speed.token_s * 1e3:.3g} ms a token"
        )
        told = {
            side: described(stats(fleet.server(system).target)) or system.name
            for side, system in systems.items()
        }
        played = Played(claim, model, seconds, speed, told, policy_sha256=digest)

        def turn(part: str, side: str, seed: int) -> Run:
            traffic, length_s = (
                (claim.traffic, seconds) if part == "traffic" else (claim.calm, CALM * seconds)
            )
            # work for so long, whatever the load
            count = traffic.load * speed.requests_per_s * length_s / max(traffic.load, 1.0)
            workload = open_loop(traffic, speed, round(count), seed, int(side == CONTROL))
            title = f"{claim.policy}, {part}, seed {seed}, {side}"
            its = systems[POLICY if side == POLICY else BASELINE]
            run = fleet.play(its, workload, title, silence_s=_SILENCE_S)
            if (why := unsound(run)) is not None:
                say(f"{title}: left out, {why}")
            return run

        for part in PARTS:
            sides = {side: partial(turn, part, side) for side in BLOCK}
            played.turns[part] = Experiment(sides, {}, BASELINE).run(seeds).turns
    return played


def served(policy: str, claim: Claim, model: str, options: Sequence[str]) -> System:
    command = server_command(
        f"dynamic:{policy}", model, ("--max-batch-size", str(ROWS), *claim.options, *options),
        prefix_caching=claim.prefix_caching,
    )  # fmt: skip
    return System(policy, command, None)


def _speed(fleet: Fleet, system: System, traffic: Traffic) -> Speed:
    """From a closed loop that keeps the batch full. Raises servers.ServerError for a server that is
    too slow for these runs."""
    workload = closed_loop(traffic, _WARM_REQUESTS, 3 * ROWS, seed=1_000_003)
    rate, tokens_per_s = saturated(
        system, fleet, workload, _WARM_S, _LEAST_TOKENS * ROWS, _SILENCE_S
    )
    return Speed(rate, ROWS / rate, ROWS / tokens_per_s)
