"""The bare loop under immediate requests at their times, together with deferred ones.

The clock is passed in, so that the same runs can be made in virtual time.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import numpy as np

from batching import BatchingManager
from benchmarks.bare import Job, Tally
from benchmarks.deferred.points import Measured, Step
from engine.inference import Inference
from engine.iteration import Wait
from generate import dynamic
from generate.modes import make_ledger
from requested import Sampling, ServiceClass
from scheduling.classes.budget import Allowance, Budget
from scheduling.prediction.predictor import Predictor, StepTime
from scheduling.prediction.step_time import Work
from seams import Model, Plan, Policy, View
from telemetry.stats import Recorders

JOBS = 512  # different deferred requests


class Clock(Protocol):
    def now_s(self) -> float: ...

    def wait_until(self, at_s: float) -> None: ...


class RealClock:
    def now_s(self) -> float:
        return time.perf_counter()

    def wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.perf_counter()))


class Noted(Budget):
    """Records the immediate work and the budget of its plans, by time."""

    def __init__(
        self, inner: Policy, predictor: StepTime, factor: float, max_step_s: float
    ) -> None:
        super().__init__(inner, predictor, factor, max_step_s)
        self.notes: dict[float, tuple[Work, float]] = {}
        self._now_s = 0.0

    def mixed(self, view: View) -> Plan:
        self._now_s = view.now_s
        return super().mixed(view)

    def allowance(self, work: Work, factor: float, context: int) -> Allowance:
        allowance = super().allowance(work, factor, context)
        self.notes[self._now_s] = work, allowance.budget_s
        return allowance


class Durations(Tally):
    """Records which iterations followed the previous one at once."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: set[int] = set()  # iterations that began after a time without work

    def busy(self, start_s: float, end_s: float) -> None:
        self.ends.add(len(self.iterations))

    def seconds(self) -> list[float]:
        """Durations of the iterations, to the start of the next one if it followed at once."""
        starts_s = [record.start_s for record in self.iterations[1:]]
        return [
            record.duration_s if n in self.ends or next_s is None else next_s - record.start_s
            for n, (record, next_s) in enumerate(
                zip(self.iterations, [*starts_s, None], strict=True), start=1
            )
        ]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens: prompts uniform, outputs normal, both cut."""

    prompt: tuple[int, int] = (8, 64)
    output: tuple[int, int, int, int] = (48, 24, 4, 128)  # mean, deviation, least, most

    def jobs(self, vocab_size: int, n: int, rng: np.random.Generator) -> list[Job]:
        mean, deviation, least, most = self.output
        outputs = np.clip(rng.normal(mean, deviation, n), least, most).astype(int)
        lengths = rng.integers(self.prompt[0], self.prompt[1] + 1, n)
        return [
            Job(rng.integers(0, vocab_size, length).tolist(), int(output))
            for length, output in zip(lengths, outputs, strict=True)
        ]


SHORT = Sizes((8, 32), (20, 10, 4, 48))  # so that a slow model completes enough requests for a p99


class Bench:
    """The model, and how it is loaded with requests."""

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        clock: Clock,
        max_batch_size: int,
        sizes: Sizes,
    ) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.clock = clock
        self.max_batch_size = max_batch_size
        self.sizes = sizes

    def play(
        self,
        policy: Policy,
        arrivals_s: Sequence[float],
        duration_s: float,
        backlog: int,
        predictor: Predictor,
        seed: int,
    ) -> Measured:
        """Runs immediate requests at their times and deferred ones beside them, until the last
        immediate request is complete; the remaining deferred ones are then cancelled."""
        rng, tally = np.random.default_rng(seed), Durations()
        jobs = self.sizes.jobs(self.vocab_size, len(arrivals_s), rng)
        filling = cycle(self.sizes.jobs(self.vocab_size, JOBS, rng))
        manager = BatchingManager(
            policy,
            Recorders(tally, predictor),
            max_batch_size=self.max_batch_size,
            max_waiting=sys.maxsize,
        )
        manager.serve(self.model, make_ledger("dynamic", self.model))
        gc.collect()
        gc.freeze()  # objects of earlier runs are not collected in this one
        start_s = self.clock.now_s()
        due = [
            self._inference(job, start_s + at_s, "immediate")
            for job, at_s in zip(jobs, arrivals_s, strict=True)
        ]
        immediate, due = due, due[::-1]
        deferred: list[Inference] = []
        end_s = start_s + duration_s
        while True:
            now_s = self.clock.now_s()
            if now_s >= end_s and not due and all(i.record for i in immediate):
                break
            while due and due[-1].arrival_s <= now_s:
                manager.enqueue(due.pop())
            while backlog and manager.counts["waiting"] < backlog:
                deferred.append(self._inference(next(filling), now_s, "deferred"))
                manager.enqueue_stored(deferred[-1])
            if isinstance(manager.step(dynamic.lay_out, self.clock.now_s), Wait):
                self.clock.wait_until(min(due[-1].arrival_s if due else end_s, now_s + 0.1))
        for inference in deferred:
            if not inference.record:
                manager.cancel(inference)
        while not isinstance(manager.step(dynamic.lay_out, self.clock.now_s), Wait):
            pass
        if failed := [i.error for i in immediate if i.error]:
            raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
        return Measured(
            start_s,
            duration_s,
            tally.iterations,
            self._steps(tally, policy.notes if isinstance(policy, Noted) else {}),
            [i.record for i in immediate if i.record],
            [r for r in tally.requests if r.service_class == "deferred"],
        )

    @staticmethod
    def _steps(tally: Durations, notes: dict[float, tuple[Work, float]]) -> list[Step]:
        steps = []
        for record, seconds in zip(tally.iterations, tally.seconds(), strict=True):
            work, budget_s = notes.get(record.start_s, (Work(), None))
            steps.append(Step(seconds, work, None if work.num_tokens else budget_s))
        return steps

    @staticmethod
    def _inference(job: Job, at_s: float, service_class: ServiceClass) -> Inference:
        greedy = Sampling(temperature=0)
        return Inference(job.prompt, job.output_tokens, greedy, at_s, service_class=service_class)
