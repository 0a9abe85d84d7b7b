"""What a comparison measures before its runs: one request alone, and each system's limit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from client.analysis.comparison.results import Calibration
from client.analysis.fairness import fit_isolated
from client.analysis.figures import table_of, tokens_between
from client.comparison.fleet import Fleet, must_answer
from client.load.live import say
from client.load.records import Run
from client.load.servers.probing import FIRST_ANSWER_S
from client.load.servers.processes import ServerError
from client.load.servers.stats import settled_stats
from client.load.servers.system import System
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload

CALIBRATION_SEED = 1_000_003
CONCURRENCY = 64  # of the closed loop that measures a limit
FIRST = "before the first run"  # of a comparison, when a system was lost


def calibrate(system: System, fleet: Fleet, recipe: Recipe, seconds: float) -> Calibration:
    """Play a closed loop of one user against the baseline, for about ``seconds``.

    Raises ServerError where it does not answer.
    """
    before = time.monotonic()
    server = fleet.server(system)
    took_s = time.monotonic() - before

    def alone(count: int, seed: int, title: str) -> Run:
        asked = replace(recipe, requests=count, seed=seed, deferred_share=0.0)
        workload = make(asked, fleet.words, users=1)
        run = fleet.play(system, workload, title, silence_s=FIRST_ANSWER_S)
        must_answer(run, server)
        return run

    few = alone(4, CALIBRATION_SEED + 1, f"{system.name} alone")
    count = int(np.clip(round(seconds / (few.wall_s / 4)), 8, 200))
    run = alone(count, CALIBRATION_SEED, f"capacity of {system.name}")
    return Calibration(
        baseline=system.name,
        capacity=count / run.wall_s,
        isolated=fit_isolated(table_of(run.outcomes).rows),
        ttft_s=float(np.median([(o.first_s or 0.0) - o.sent_s for o in run.outcomes])),
        longest_s=max((o.end_s or 0.0) - o.sent_s for o in run.outcomes),
        start_s=took_s,
        streamed=server.target.stream,
        requests=count,
    )


def knee(system: System, fleet: Fleet, recipe: Recipe, seconds: float) -> float:
    """The limit in requests a second, from a closed loop of many users.

    Raises ServerError if there is no response.
    """
    closed = replace(recipe, requests=20 * CONCURRENCY, seed=CALIBRATION_SEED, deferred_share=0.0)
    workload = make(closed, fleet.words, users=CONCURRENCY)
    return saturated(system, fleet, workload, (seconds, 4 * seconds, 16 * seconds))[0]


def saturated(
    system: System,
    fleet: Fleet,
    workload: Workload,
    lengths_s: Sequence[float],
    least_tokens: int = 1,
    silence_s: float = FIRST_ANSWER_S,
) -> tuple[float, float]:
    """Requests and tokens a second that a closed loop gets once its first third is over.

    It is cut after the first of the lengths in which so many tokens arrive: a static batch returns
    its tokens at its end. Raises ServerError if the last is too short, too.
    """
    mean = float(np.mean([r.output_tokens for r in workload.requests]))
    for longest_s in lengths_s:
        run = fleet.play(
            system, workload, f"limit of {system.name}", drain_s=longest_s, silence_s=silence_s
        )
        settled_stats(fleet.server(system).target)  # a server that died in it raises
        tokens = tokens_between(table_of(run.outcomes), run.wall_s / 3, run.wall_s)
        if tokens >= least_tokens:
            tokens_per_s = tokens / (run.wall_s * 2 / 3)
            return tokens_per_s / mean, tokens_per_s
    raise ServerError(
        f"{run.target} returned {tokens or 'no'} token{'s' * (tokens > 1)} in {run.wall_s:.1f} s"
    )


def calibrated(
    systems: Sequence[System], fleet: Fleet, recipe: Recipe, seconds: float
) -> Calibration | None:
    """The unit of load, from the first system that responds; those before it are lost."""
    for system in systems:
        say(f"measuring {system.name} with one request at a time")
        with fleet.losing(system, "while its capacity was measured"):
            found = calibrate(system, fleet, recipe, seconds)
            say(f"loads are multiples of {found.capacity:.3g} requests/s")
            return found
    return None


def limits_of(
    systems: Sequence[System], fleet: Fleet, recipe: Recipe, seconds: float, unit: Calibration
) -> dict[str, float]:
    """The limit of each system, in loads."""
    found: dict[str, float] = {}
    seconds = max(seconds * 2 / 3, 6 * unit.longest_s)
    for system in systems:
        if system.beside is None and system.name not in fleet.lost:
            with fleet.losing(system, FIRST):
                limit = knee(system, fleet, recipe, seconds) / unit.capacity
                found[system.name] = limit
                say(f"{system.name}: its limit is load {limit:.3g}")
    return found
