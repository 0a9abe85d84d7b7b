"""What a comparison measures before its runs: one request alone, and each system's limit."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from client.analysis.comparison.results import Calibration
from client.analysis.fairness import fit_isolated
from client.analysis.requests import table_of, tokens_between
from client.comparison.fleet import Fleet, must_answer
from client.load.live import live_view
from client.load.servers.probing import FIRST_ANSWER_S
from client.load.servers.processes import ServerError
from client.load.servers.stats import settled_stats
from client.load.servers.system import System
from client.workloads.recipe import Recipe, make

CALIBRATION_SEED = 1_000_003
CONCURRENCY = 64  # of the closed loop that measures a limit


def calibrate(system: System, fleet: Fleet, recipe: Recipe, seconds: float) -> Calibration:
    """Play a closed loop of one user against the baseline, for about ``seconds``.

    Raises ServerError where it does not answer.
    """
    before = time.monotonic()
    server = fleet.server(system)
    took_s = time.monotonic() - before
    target = server.target
    alone = replace(recipe, seed=CALIBRATION_SEED, deferred_share=0.0)
    probe = fleet.crew.play(
        make(replace(alone, requests=4, seed=CALIBRATION_SEED + 1), fleet.words, users=1),
        target,
        silence_s=FIRST_ANSWER_S,
    )
    must_answer(probe, server)
    count = int(np.clip(round(seconds / (probe.wall_s / 4)), 8, 200))
    with live_view(f"capacity of {system.name}", count, leave=False) as watch:
        run = fleet.crew.play(
            make(replace(alone, requests=count), fleet.words, users=1),
            target,
            silence_s=FIRST_ANSWER_S,
            watch=watch,
        )
    must_answer(run, server)
    return Calibration(
        baseline=system.name,
        capacity=count / run.wall_s,
        isolated=fit_isolated(table_of(run.outcomes).rows),
        ttft_s=float(np.median([(o.first_s or 0.0) - o.sent_s for o in run.outcomes])),
        longest_s=max((o.end_s or 0.0) - o.sent_s for o in run.outcomes),
        start_s=took_s,
        streamed=target.stream,
        requests=count,
    )


def knee(system: System, fleet: Fleet, recipe: Recipe, seconds: float) -> float:
    """The limit in requests a second, from a closed loop of many users that is cut after `seconds`,
    or later if no token arrived by then: a static batch returns its tokens at its end.

    Raises ServerError if there is no response.
    """
    server = fleet.server(system)
    closed = replace(recipe, requests=20 * CONCURRENCY, seed=CALIBRATION_SEED, deferred_share=0.0)
    workload = make(closed, fleet.words, users=CONCURRENCY)
    mean = float(np.mean([r.output_tokens for r in workload.requests]))
    for longest_s in (seconds, 4 * seconds, 16 * seconds):
        with live_view(f"limit of {system.name}", len(workload.requests), leave=False) as watch:
            run = fleet.crew.play(
                workload,
                server.target,
                drain_s=longest_s,
                silence_s=FIRST_ANSWER_S,
                watch=watch,
            )
        if run.interrupted:
            raise KeyboardInterrupt
        settled_stats(server.target)
        if (why := server.failure()) is not None:
            raise ServerError(why)
        window_s = run.wall_s * 2 / 3
        tokens = tokens_between(table_of(run.outcomes), run.wall_s / 3, run.wall_s)
        found = tokens / window_s / mean
        if found:
            return found
    raise ServerError(f"{run.target} returned no token in {run.wall_s:.1f} s")
