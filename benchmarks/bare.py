"""The work of the benchmarks and the bare loop that does it. Needs only torch and numpy, since the
GPU benchmark runs where nothing else is installed."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batching import BatchingManager
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from engine.lifecycle import Event
from engine.speculation import Speculation
from generate.modes import MODES, ModeName, make_ledger
from model import LoadOptions, load_model
from runtime.executor import Executor
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import IterationRecord, Model, Policy, Recorder, RequestRecord, Sampling

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


def jobs(
    rng: np.random.Generator, vocab_size: int, prompts: Sequence[int], outputs: Sequence[int],
    at_s: Sequence[float] | None = None,
) -> list[Job]:  # fmt: skip
    """Random tokens, of these lengths."""
    times = [0.0] * len(prompts) if at_s is None else at_s
    return [
        Job(rng.integers(0, vocab_size, length).tolist(), int(output), arrival_s)
        for length, output, arrival_s in zip(prompts, outputs, times, strict=True)
    ]


def offline_work(vocab_size: int, requests: int = 64, seed: int = 0) -> list[Job]:
    """Prompts of 4 to 64 random tokens, outputs normal(100, 50) clipped to 1..200, as in the
    original's client, all present at the start."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(4, 65, requests).tolist()
    return jobs(rng, vocab_size, prompts, np.clip(rng.normal(100, 50, requests), 1, 200).tolist())


def prefill_work(vocab_size: int, requests: int = 24) -> list[Job]:
    """Prompts of 512 random tokens, outputs of 16: a prefill with a little decoding."""
    return jobs(np.random.default_rng(0), vocab_size, [512] * requests, [16] * requests)


def mixed_work(vocab_size: int, requests: int = 32) -> list[Job]:
    """Lengths like those of conversations: log-normal, prompts of 4 to 600 tokens (median
    90), outputs of 1 to 300 (median 110), some a hundred times as long as others."""
    rng = np.random.default_rng(0)
    prompts = np.clip(rng.lognormal(np.log(90), 1.1, requests), 4, 600).astype(int).tolist()
    outputs = np.clip(rng.lognormal(np.log(110), 0.9, requests), 1, 300).tolist()
    return jobs(rng, vocab_size, prompts, outputs)


def single_work(vocab_size: int) -> list[Job]:
    """One request alone: a prompt of 32 random tokens, an output of 200."""
    return jobs(np.random.default_rng(0), vocab_size, [32], [200])


WORKS: dict[str, Callable[[int], list[Job]]] = {  # of a vocabulary size
    "decode": offline_work,
    "prefill": prefill_work,
    "mixed": mixed_work,
    "single": single_work,
}


class Tally:
    """A recorder that keeps what a benchmark needs of the records."""

    def __init__(self) -> None:
        self.iterations: list[IterationRecord] = []
        self.requests: list[RequestRecord] = []

    def iteration(self, record: IterationRecord) -> None:
        self.iterations.append(record)

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)

    def busy(self, start_s: float, end_s: float) -> None:
        """Not needed."""


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

    def ttft_s(self) -> list[float]:
        return [(i.first_token_s or math.inf) - i.arrival_s for i in self.inferences]


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
    stored: Iterator[Job] | None = None,
    backlog: int = 0,
    until_s: float = 0.0,
) -> BareRun:
    """Does the work in this thread with the mode's own loop; each request has its own seed.

    Iterations take real time, and time without work is skipped: a run lasts as long as its work,
    and its latencies are those of a server. ``ledger`` keeps cached blocks from run to run, and
    ``predictor``, that of the policy, what it has learnt. ``backlog`` of the deferred requests
    ``stored`` wait at any time, until all others have ended and ``until_s`` is over; those that are
    left then are cancelled.
    """
    tally = Tally()
    manager = BatchingManager(
        policy,
        [tally] if predictor is None else [tally, predictor],
        max_batch_size=max_batch_size,
        max_waiting=len(work) + backlog,
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
    deferred: list[Inference] = []
    while True:
        while coming and coming[0].arrival_s <= now():
            manager.enqueue(coming.popleft())
        if stored is not None:
            if now() >= start_s + until_s and not coming and all(i.end for i in inferences):
                stored = None
                for inference in deferred:
                    if inference.end is None:
                        manager.cancel(inference)
            while stored is not None and manager.counts["waiting"] < backlog:
                job = next(stored)
                deferred.append(
                    Inference(
                        job.prompt, job.output_tokens, sampling, now(), service_class="deferred"
                    )
                )
                manager.enqueue_stored(deferred[-1])
        waits = manager.step(MODES[mode].lay_out, now)
        if isinstance(waits, Wait):
            due_s = min(waits.until_s, coming[0].arrival_s if coming else math.inf)
            if stored is not None:
                due_s = min(due_s, start_s + until_s)
            if due_s == math.inf:
                break
            skipped_s += max(0.0, due_s - now())
    seconds = now() - start_s
    failed = [i.error for i in inferences if i.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
    return BareRun(seconds, tally, inferences, manager.history.since(0).events)


def loaded(
    name: str, dtype: str, limit: int, mode: ModeName = "dynamic", device: str = "cpu", **more: Any
) -> Executor:
    """A model that has warmed up. ``more`` are further LoadOptions."""
    model = load_model(LoadOptions(mode, name, device, dtype, 0, limit, **more))
    model.warm_up()
    return model
