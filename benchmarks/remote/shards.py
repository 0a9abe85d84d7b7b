"""Two shards against one: the same logits and tokens, and the cost of their collectives."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bare import Job, offline_work, run_bare
from benchmarks.remote.servers import connected, serving
from engine.inference import Inference
from model_server.shards import ROOT, free_port
from requested import Sampling
from scheduling.policies.orca import Orca
from seams import Model

REQUESTS, TOKENS, ALTERNATIVES = 16, 24, 20
NEAR_TIE = 1e-4
PATIENCE_S = 60.0
REDUCED = 64, 1024  # floats of an all-reduce: rows of GPT-2 medium
REDUCTIONS = 300


@dataclass(frozen=True, slots=True)
class Agreement:
    model: str
    tokens: int
    different_tokens: int  # although the best two were not a tie
    largest_difference: float  # of a logprob among the likeliest of both
    one_ms: float  # of an iteration, the median
    two_ms: float
    all_reduce_ms: float  # of 64 x 1,024 floats between two processes, the median


def measure(model: str) -> Agreement:
    found = {}
    for shards in (1, 2):
        with (
            serving(model, "float32", shards, REQUESTS, PATIENCE_S) as (address, _),
            connected(address, model, REQUESTS, PATIENCE_S) as remote,
        ):
            found[shards] = run(remote)
    (one, one_ms), (two, two_ms) = found[1], found[2]
    different, largest = 0, 0.0
    for a, b in zip(one, two, strict=True):
        for mine, other in zip(a.logprobs, b.logprobs, strict=True):
            theirs = dict(other.top)
            gaps = [abs(score - theirs[token]) for token, score in mine.top if token in theirs]
            largest = max(largest, *gaps)
            if mine.token != other.token:
                different += mine.top[0][1] - mine.top[1][1] > NEAR_TIE
                break  # the texts differ from here on
    tokens = sum(len(inference.logprobs) for inference in one)
    return Agreement(model, tokens, different, largest, one_ms, two_ms, all_reduce_ms())


def run(model: Model) -> tuple[Sequence[Inference], float]:
    """Greedy requests with their logprobs, and the median iteration."""
    work = [Job(job.prompt, TOKENS) for job in offline_work(4096, REQUESTS)]
    sampling = Sampling(temperature=0, logprobs=ALTERNATIVES)
    done = run_bare(model, Orca(), "dynamic", work, REQUESTS, sampling)
    return done.inferences, statistics.median(i.duration_s for i in done.tally.iterations) * 1e3


PROGRAM = """
import json, statistics, sys, time, torch, torch.distributed as dist
from models.part import Part
from runtime.shards import join
rank, rendezvous, rows, width, times = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
torch.set_num_threads(1)
join(rendezvous, Part(rank, 2), torch.device("cpu"))
x, found = torch.ones(rows, width), []
for _ in range(times):
    start_s = time.perf_counter()
    dist.all_reduce(x)
    found.append(time.perf_counter() - start_s)
print(json.dumps(statistics.median(found)))
"""


def all_reduce_ms() -> float:
    rendezvous = f"127.0.0.1:{free_port()}"
    sizes = [str(number) for number in (*REDUCED, REDUCTIONS)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), rendezvous, *sizes],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    return float(json.loads(outputs[0])) * 1e3
