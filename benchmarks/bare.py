"""The work of the benchmarks and the bare loop that does it. Needs only torch and numpy, since the
GPU benchmark runs where nothing else is installed."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from batching import BatchingManager
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from engine.speculation import Speculation
from generate.modes import MODES, ModeName, make_ledger
from records import Event, IterationRecord, Recorder, RequestRecord
from requested import Sampling
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Model, Policy

GREEDY = Sampling(temperature=0)
# the server's default, stall-free, plans by the times that it measures
POLICY_OF: dict[ModeName, Callable[[], Policy]] = {
    "nobatch": NoBatch,
    "static": lambda: Static(max_wait_s=0.0),
    "dynamic": Orca,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the work, in tokens."""

    prompt: list[int]
    output_tokens: int
    arrival_s: float = 0.0  # after the start


def offline_work(vocab_size: int, requests: int = 64, seed: int = 0) -> list[Job]:
    """Prompts of 4 to 64 random tokens, outputs normal(100, 50) clipped to 1..200, as in the
    original's client, all present at the start."""
    rng = np.random.default_rng(seed)
    prompt_lengths = rng.integers(4, 65, requests)
    outputs = np.clip(rng.normal(100, 50, requests), 1, 200).astype(int)
    return [
        Job(rng.integers(0, vocab_size, length).tolist(), int(output))
        for length, output in zip(prompt_lengths, outputs, strict=True)
    ]


def prefill_work(vocab_size: int, requests: int = 24, seed: int = 0) -> list[Job]:
    """Prompts of 512 random tokens, outputs of 16: a prefill with a little decoding."""
    rng = np.random.default_rng(seed)
    return [Job(rng.integers(0, vocab_size, 512).tolist(), 16) for _ in range(requests)]


def mixed_work(vocab_size: int, requests: int = 32, seed: int = 0) -> list[Job]:
    """Lengths like those of conversations: log-normal, prompts of 4 to 600 tokens (median
    90), outputs of 1 to 300 (median 110), some a hundred times as long as others."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(np.log(90), 1.1, requests), 4, 600).astype(int)
    outputs = np.clip(rng.lognormal(np.log(110), 0.9, requests), 1, 300).astype(int)
    return [
        Job(rng.integers(0, vocab_size, length).tolist(), int(output))
        for length, output in zip(prompts, outputs, strict=True)
    ]


def single_work(vocab_size: int, seed: int = 0) -> list[Job]:
    """One request alone: a prompt of 32 random tokens, an output of 200."""
    rng = np.random.default_rng(seed)
    return [Job(rng.integers(0, vocab_size, 32).tolist(), 200)]


WORKS: dict[str, Callable[[int], list[Job]]] = {  # of a vocabulary size
    "decode": offline_work,
    "prefill": prefill_work,
    "mixed": mixed_work,
    "single": single_work,
}


class Tally:
    """A recorder that keeps what a benchmark needs of the records, and passes them on."""

    def __init__(self, *others: Recorder) -> None:
        self.others = others
        self.iterations: list[IterationRecord] = []
        self.requests: list[RequestRecord] = []

    def iteration(self, record: IterationRecord) -> None:
        self.iterations.append(record)
        for other in self.others:
            other.iteration(record)

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)
        for other in self.others:
            other.request(record)

    def busy(self, start_s: float, end_s: float) -> None:
        for other in self.others:
            other.busy(start_s, end_s)


@dataclass(frozen=True, slots=True)
class BareRun:
    """The result of the loop without HTTP."""

    seconds: float
    tally: Tally
    inferences: Sequence[Inference]
    events: Sequence[Event]  # of the manager's history

    @property
    def outputs(self) -> list[list[int]]:
        return [i.ids[i.prompt_tokens :] for i in self.inferences]

    @property
    def tokens(self) -> int:
        return sum(record.generated for record in self.tally.requests)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def run_bare(
    model: Model,
    policy: Policy,
    mode: ModeName,
    work: Sequence[Job],
    max_batch_size: int,
    sampling: Sampling = GREEDY,
    *,
    lookahead: int = 0,
    ledger: Ledger | None = None,
    clock: Callable[[], float] = time.perf_counter,
    predictor: Recorder | None = None,
    speculation: Speculation | None = None,
) -> BareRun:
    """Does the work in this thread with the mode's own loop; each request has its own seed.

    Iterations take real time, and time without work is skipped: a run lasts as long as its work,
    and its latencies are those of a server. ``ledger`` keeps cached blocks from run to run, and
    ``predictor``, that of the policy, what it has learnt.
    """
    tally = Tally() if predictor is None else Tally(predictor)
    manager = BatchingManager(
        policy,
        tally,
        max_batch_size=max_batch_size,
        max_waiting=len(work),
        lookahead=lookahead,
        speculation=speculation,
    )
    manager.serve(model, make_ledger(mode, model) if ledger is None else ledger)
    skipped_s = 0.0

    def now() -> float:
        return clock() + skipped_s

    start_s = now()
    inferences = [
        Inference(
            job.prompt, job.output_tokens, replace(sampling, seed=seed), start_s + job.arrival_s
        )
        for seed, job in enumerate(work)
    ]  # fmt: skip
    coming = deque(sorted(inferences, key=lambda inference: inference.arrival_s))
    while True:
        while coming and coming[0].arrival_s <= now():
            manager.enqueue(coming.popleft())
        waits = manager.step(MODES[mode].lay_out, now)
        if isinstance(waits, Wait):
            due_s = min(waits.until_s, coming[0].arrival_s if coming else math.inf)
            if due_s == math.inf:
                break
            skipped_s += max(0.0, due_s - now())
    seconds = now() - start_s
    failed = [i.error for i in inferences if i.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
    return BareRun(seconds, tally, inferences, manager.history.since(0).events)


def drive(
    model: Model,
    policy: Policy,
    work: Sequence[Inference],
    iterations: int,
    rows: int,
    max_resident: int | None = None,
    *recorders: Recorder,
) -> Tally:
    """So many iterations of the dynamic mode with batches of ``rows``, all of the work present."""
    tally = Tally(*recorders)
    manager = BatchingManager(
        policy, tally, max_batch_size=rows, max_waiting=len(work), max_resident=max_resident
    )
    manager.serve(model, make_ledger("dynamic", model))
    for inference in work:
        manager.enqueue(inference)
    for _ in range(iterations):
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)
    return tally


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """A small model restricts torch to one thread when it is loaded: the next model in the same
    process must have all of them again."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
