"""Prompts that begin alike, and the bare loop over a model whose cached blocks stay between runs.

A run lasts as long as its work, since idle time is skipped; latencies are those of a server.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.bare import BareRun, Job, run_bare
from engine.blocks import Ledger
from scheduling.policies.orca import Orca
from seams import Model

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
