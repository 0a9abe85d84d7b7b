"""The cost of a model server: the loop over a model in this process, and over one behind gRPC."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.bare import BareRun, Job, offline_work, run_bare, threads_kept
from benchmarks.harness.turns import Ratio, in_turns, ratio
from benchmarks.remote.servers import connected, serving
from model import LoadOptions, load_model
from model_server.remote.ranks import Ranks
from model_server.wire import model_pb2 as wire
from model_server.wire.access import Access
from scheduling.policies.orca import Orca
from seams import Model

LIMIT = 64
CALLS = 500
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Speed:
    model: str
    in_process_tokens_per_s: float
    remote_tokens_per_s: float
    ratio: Ratio
    ahead_ratio: Ratio  # with --lookahead 1: the next iteration is sent before this one has ended
    iteration_ms: float  # in process, the median
    added_ms: float  # to an iteration, by gRPC, without lookahead
    round_trip_ms: float  # of an empty call, the median
    cpu_ratio: Ratio  # of processor time, both processes together; depends less on other work


@threads_kept()
def measure(model: str, dtype: str, most_tokens: int, rounds: int) -> Speed:
    """64 requests, all present at once, with at most this number of output tokens."""
    local = load_model(LoadOptions("dynamic", model, "cpu", dtype, 0, LIMIT))
    local.warm_up()
    work = [
        Job(job.prompt, min(job.output_tokens, most_tokens))
        for job in offline_work(local.vocab_size)
    ]

    with (
        serving(model, dtype, 1, LIMIT, PATIENCE_S) as (address, group),
        connected(address, model, LIMIT, PATIENCE_S) as remote,
    ):

        def run(model: Model, lookahead: int = 0) -> tuple[BareRun, float]:
            processes = [psutil.Process(), *(psutil.Process(p.pid) for p in group.processes)]
            before_s = cpu_s(processes)
            done = run_bare(model, Orca(), "dynamic", work, LIMIT, lookahead=lookahead)
            return done, cpu_s(processes) - before_s

        sides = {
            "here": lambda: run(local),
            "there": lambda: run(remote),
            "ahead": lambda: run(remote, 1),
        }
        runs = in_turns(sides, rounds)
        round_trip_ms = empty_call_ms(address)
    here, there, ahead = ([run.tokens_per_s for run, _ in runs[side]] for side in sides)
    first, _ = runs["here"][0]
    per_iteration_ms = [
        (b.seconds - a.seconds) / len(first.tally.iterations) * 1e3
        for (a, _), (b, _) in zip(runs["here"], runs["there"], strict=True)
    ]
    return Speed(
        model,
        statistics.median(here),
        statistics.median(there),
        ratio(there, here),
        ratio(ahead, here),
        statistics.median(i.duration_s for i in first.tally.iterations) * 1e3,
        statistics.median(per_iteration_ms),
        round_trip_ms,
        ratio([used_s for _, used_s in runs["here"]], [used_s for _, used_s in runs["there"]]),
    )


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def empty_call_ms(address: str) -> float:
    ranks = Ranks([address], Access())
    times = []
    for _ in range(CALLS):
        start_s = time.perf_counter()
        ranks.ask("Health", wire.HealthRequest(), PATIENCE_S)
        times.append(time.perf_counter() - start_s)
    ranks.close()
    return statistics.median(times) * 1e3
