"""Requests that arrive at given times, run on the bare loop: idle time is skipped, computing takes
real time. A run lasts as long as its work; latencies are those of a server.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batching import BatchingManager
from benchmarks.common import Job, Tally
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from generate.modes import MODES
from scheduling.policies.orca import Orca
from seams import IterationRecord, Model, Sampling

# of the computing thread, so that other users of the machine do not count
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


@dataclass(frozen=True, slots=True)
class Played:
    """`seconds`: from the first arrival to the last end, idle time included."""

    seconds: float
    ttft_s: Sequence[float]
    outputs: Sequence[Sequence[int]]
    iterations: Sequence[IterationRecord]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs)) / self.seconds


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

    def play(self, work: Sequence[Job], arrivals_s: Sequence[float] | None = None) -> Played:
        """Without times all are present at the start."""
        manager = BatchingManager(
            Orca(), Tally(), max_batch_size=self._limit, max_waiting=len(work)
        )
        manager.serve(self._model, self._ledger)
        inferences = [
            Inference(job.prompt, job.output_tokens, Sampling(temperature=0), at_s)
            for job, at_s in zip(work, arrivals_s or [0.0] * len(work), strict=True)
        ]
        coming = sorted(inferences, key=lambda inference: inference.arrival_s)
        skipped_s = -self._clock()

        def now() -> float:
            return self._clock() + skipped_s

        while True:
            while coming and coming[0].arrival_s <= now():
                manager.enqueue(coming.pop(0))
            waits = isinstance(manager.step(MODES["dynamic"].lay_out, now), Wait)
            if waits and not coming:
                break
            if waits:
                skipped_s += max(0.0, coming[0].arrival_s - now())
        if failed := [i.error for i in inferences if i.error]:
            raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
        return Played(
            now(),
            [(i.first_token_s or math.inf) - i.arrival_s for i in inferences],
            [i.ids[i.prompt_tokens :] for i in inferences],
            [e for e in manager.history.since(0).events if isinstance(e, IterationRecord)],
        )
