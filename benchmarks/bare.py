"""The work of the benchmarks and the bare loop that does it. Needs only torch and numpy, since the
GPU benchmark runs where nothing else is installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from batching import BatchingManager
from engine.inference import Inference
from engine.iteration import Wait
from generate.modes import MODES, ModeName, make_ledger
from seams import IterationRecord, Model, Policy, RequestRecord, Sampling

GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Job:
    """One request of the work, in tokens."""

    prompt: list[int]
    output_tokens: int


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
    """A recorder that keeps what a benchmark needs of the records."""

    def __init__(self) -> None:
        self.iterations: list[IterationRecord] = []
        self.requests: list[RequestRecord] = []

    def iteration(self, record: IterationRecord) -> None:
        self.iterations.append(record)

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)

    def busy(self, start_s: float, end_s: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class BareRun:
    """The result of the loop without HTTP."""

    seconds: float
    tally: Tally
    outputs: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        return sum(r.generated for r in self.tally.requests) / self.seconds


def run_bare(
    model: Model,
    policy: Policy,
    mode: ModeName,
    work: Sequence[Job],
    max_batch_size: int,
    sampling: Sampling = GREEDY,
    lookahead: int = 0,
) -> BareRun:
    """The mode's own loop over the work, in this thread, all requests present at once, each with
    its own seed."""
    tally = Tally()
    manager = BatchingManager(
        policy,
        tally,
        max_batch_size=max_batch_size,
        max_waiting=len(work),
        lookahead=lookahead,
    )
    manager.serve(model, make_ledger(mode, model))
    start_s = time.perf_counter()
    inferences = [
        Inference(job.prompt, job.output_tokens, replace(sampling, seed=seed), start_s)
        for seed, job in enumerate(work)
    ]
    for inference in inferences:
        manager.enqueue(inference)
    while not isinstance(manager.step(MODES[mode].lay_out, time.perf_counter), Wait):
        pass
    seconds = time.perf_counter() - start_s
    failed = [i.error for i in inferences if i.error]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
    return BareRun(seconds, tally, [i.ids[i.prompt_tokens :] for i in inferences])
