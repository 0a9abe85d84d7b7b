"""The savings of prefix caching if prompts begin alike, and its cost if none do.

    python -m benchmarks.prefix --dtype bfloat16       # gpt2-medium's shape, some minutes
    python -m benchmarks.prefix --model embedded
    python -m benchmarks.prefix --clock cpu            # seconds of one thread, on a busy machine

Two parts, each with prefix caching and without it, in turns on the same work: TTFT of a prompt of
which 90 % were sent before, and whether its tokens are the same; and tokens per second where no two
prompts begin alike.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks.bare import BareRun, Job, offline_work, run_bare
from benchmarks.harness.report import options, report
from client.experiment import Experiment, Found
from engine.blocks import Ledger
from model import LoadOptions, load_model
from scheduling.policies.orca import Orca
from seams import Model

SHARED_SHARE = 0.9
OUTPUT_TOKENS = 8
OWN_TOKENS = 16, 48  # of a prompt after a system prompt: uniform
# of the computing thread, so that other users of the machine do not count
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


class Prefixes:
    """Random prompts; those with the same `shared` number begin alike."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def tokens(self, count: int) -> list[int]:
        return [int(token) for token in self._rng.integers(0, self._vocab_size, count)]

    def behind(self, beginnings: Sequence[list[int]], requests: int) -> list[Job]:
        picked = self._rng.integers(len(beginnings), size=requests)
        own = self._rng.integers(*OWN_TOKENS, size=requests)
        return [
            Job(beginnings[k] + self.tokens(int(n)), OUTPUT_TOKENS)
            for k, n in zip(picked.tolist(), own.tolist(), strict=True)
        ]

    def gaps_s(self, requests: int) -> list[float]:
        """Of Poisson arrivals, one a second."""
        return [float(gap) for gap in self._rng.exponential(1.0, requests)]


class Loop:
    """A model and a ledger that stay warm from one run to the next. Greedy, policy `orca`."""

    def __init__(
        self,
        model: Model,
        limit: int,
        *,
        prefix_caching: bool,
        clock: str,
        blocks: int | None = None,
    ) -> None:
        """`blocks`: of KV memory, if less than the model has."""
        self._model = model
        self._limit = limit
        self._clock = CLOCKS[clock]
        self._ledger = Ledger(
            blocks or model.num_blocks, model.block_tokens, prefix_caching=prefix_caching
        )

    def play(self, work: Sequence[Job]) -> BareRun:
        return run_bare(
            self._model, Orca(), "dynamic", work, self._limit, ledger=self._ledger,
            clock=self._clock,
        )  # fmt: skip


def arriving(work: Sequence[Job], arrivals_s: Sequence[float]) -> list[Job]:
    return [replace(job, arrival_s=at_s) for job, at_s in zip(work, arrivals_s, strict=True)]


def ttft_s(run: BareRun) -> list[float]:
    return [(i.first_token_s or math.inf) - i.arrival_s for i in run.inferences]


WITHOUT, WITH = "without", "with"


def ttft(model: Model, args: Namespace, vocab_size: int) -> Found:
    prefixes = Prefixes(vocab_size, args.seed)
    shared = int(args.prompt_tokens * SHARED_SHARE)

    def pair(_: int) -> list[Job]:
        beginning = prefixes.tokens(shared)
        rest = args.prompt_tokens - shared
        return [Job(beginning + prefixes.tokens(rest), OUTPUT_TOKENS) for _ in range(2)]

    def whole(jobs: list[Job]) -> BareRun:
        return Loop(model, 1, prefix_caching=False, clock=args.clock).play(jobs[1:])

    def hit(jobs: list[Job]) -> BareRun:
        loop = Loop(model, 1, prefix_caching=True, clock=args.clock)
        loop.play(jobs[:1])
        return loop.play(jobs[1:])

    what = f"TTFT, {args.prompt_tokens} tokens, 90 % sent before"
    metrics: dict[str, Callable[[BareRun], float]] = {"s": lambda run: ttft_s(run)[0]}
    sides = {WITHOUT: whole, WITH: hit}
    return Experiment(sides, metrics, WITHOUT, pair, {"what": what}).run(args.rounds)


def overhead(model: Model, args: Namespace, vocab_size: int) -> Found:
    """Seconds of work in which nothing is shared; the better of two runs each."""

    def side(prefix_caching: bool) -> Callable[[list[Job]], float]:
        def once(work: list[Job]) -> float:
            loop = Loop(model, args.limit, prefix_caching=prefix_caching, clock=args.clock)
            return loop.play(work).seconds

        return lambda work: min(once(work) for _ in range(2))

    def work(number: int) -> list[Job]:
        return offline_work(vocab_size, args.requests, args.seed + number)

    sides, of = {WITHOUT: side(False), WITH: side(True)}, {"what": "work that shares nothing"}
    return Experiment(sides, {"s": float}, WITHOUT, work, of).run(args.rounds)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, model="random:gpt2-medium", dtype="float32")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="of the first part")
    parser.add_argument("--requests", type=int, default=32, help="of the second part")
    parser.add_argument("--limit", type=int, default=16, help="batch limit of the second part")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.clock == "cpu":
        torch.set_num_threads(1)
    model = load_model(LoadOptions("dynamic", args.model, "cpu", args.dtype, 0, args.limit))
    model.warm_up()
    found = [measure(model, args, model.vocab_size) for measure in (ttft, overhead)]
    outputs = [[run.outputs for run in runs] for runs in found[0].turns.values()]
    same = "the same" if outputs[0] == outputs[1] else "NOT THE SAME"
    title = f"{args.model}, {args.dtype}, {args.clock} seconds"
    also = f"Tokens with shared blocks: {same}."
    report(found, title, args.out, f"prefix-{args.dtype}", also, same_tokens=same)


if __name__ == "__main__":
    main()
