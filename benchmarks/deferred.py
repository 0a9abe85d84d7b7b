"""What deferred requests cost the immediate ones beside them, and what they get: a trade-off curve.

    python -m benchmarks.deferred                                               # some 8 minutes
    python -m benchmarks.deferred --model random:gpt2-medium --dtype bfloat16   # some 12

One process, the bare loop in real time, the same weights and, for each load, the same arrivals
under every policy: immediate requests at shares of the measured capacity (Poisson, and the burst
shapes `medium` and `high` of the load generator), beside a backlog of deferred requests of the same
sizes that never ends. `alone` runs without the backlog; ratios are to it. What is left over is the
rate of deferred requests alone, less what immediate ones generate. What the curve allows is
computed from the step times measured in this run (benchmarks/deferred_report.py).
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from tqdm import tqdm

from batching import BatchingManager, Generate
from benchmarks.common import Job, Tally
from benchmarks.deferred_report import Cell, Measured, Step, report
from client.arrivals import horizon, parse_arrivals
from generate import dynamic
from inference import Inference
from model import DTYPES, LoadOptions, load_model
from scheduling.classes import Exclusive, Priority
from scheduling.deferred import Budget
from scheduling.orca import Orca
from scheduling.predictor import Predictor
from scheduling.step_time import Curve, Work, features, fit
from seams import Model, Plan, Policy, Request, Sampling, ServiceClass, View
from stats import Recorders

SHAPES = {"poisson": "poisson", "medium": "plan:medium", "high": "plan:high"}
FACTORS = (1.05, 1.15, 1.3, 1.5, 2.0, 3.0)
BACKLOG = 64  # deferred requests that wait, at all times
WARM_UP_S = 0.5


class Clock(Protocol):
    def now_s(self) -> float: ...

    def wait_until(self, at_s: float) -> None: ...


class RealClock:
    def now_s(self) -> float:
        return time.perf_counter()

    def wait_until(self, at_s: float) -> None:
        time.sleep(max(0.0, at_s - time.perf_counter()))


class Noted:
    """A policy, and of each of its plans what the immediate requests did and what was allowed."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.steps: list[Step] = []

    @property
    def answers(self) -> Literal["own", "batch"]:
        return self.policy.answers

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(view)
        work = Work.of(s for s in plan.advance if s.request.service_class == "immediate")
        idle_s = None
        if isinstance(self.policy, Budget) and not work.tokens:
            idle_s = self.policy.allowance(work, self.policy.factor).budget_s
        self.steps.append(Step(work, Work.of(plan.advance), idle_s))
        return plan

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return self.policy.retire(resident)


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


SHORT = Sizes((8, 32), (20, 10, 4, 48))  # so that a slow model answers enough for a p99


class Bench:
    """The model, and how it is loaded with requests."""

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        generate: Generate,
        clock: Clock,
        max_batch_size: int,
        seed: int,
        sizes: Sizes,
    ) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.generate = generate
        self.clock = clock
        self.max_batch_size = max_batch_size
        self.seed = seed
        self.sizes = sizes

    def play(
        self,
        policy: Policy,
        arrivals_s: Sequence[float],
        duration_s: float,
        backlog: int,
        predictor: Predictor,
    ) -> Measured:
        """Immediate requests at their times, deferred ones beside them until the time is over;
        then what is immediate ends, and what is deferred is given up."""
        rng = np.random.default_rng(self.seed)
        noted, tally = Noted(policy), Tally()
        manager = BatchingManager(
            noted,
            Recorders(tally, predictor),
            max_batch_size=self.max_batch_size,
            max_waiting=sys.maxsize,
        )
        manager.model = self.model
        start_s = self.clock.now_s()
        jobs = self.sizes.jobs(self.vocab_size, len(arrivals_s), rng)
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
                manager.submit(due.pop())
            deferred = [inference for inference in deferred if not inference.record]
            if now_s < end_s:
                while backlog and manager.counts["waiting"] < backlog:
                    (job,) = self.sizes.jobs(self.vocab_size, 1, rng)
                    deferred.append(self._inference(job, now_s, "deferred"))
                    manager.submit_stored(deferred[-1])
            else:
                for inference in deferred:
                    manager.cancel(inference)
            if manager.step(now_s, self.generate) is None:
                self.clock.wait_until(min(due[-1].arrival_s if due else end_s, now_s + 0.1))
        for inference in deferred:
            manager.cancel(inference)
        while manager.step(self.clock.now_s(), self.generate) is not None:
            pass
        if failed := [i.error for i in immediate if i.error]:
            raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
        steps = [step for step in noted.steps if step.all.tokens]
        return Measured(start_s, duration_s, tally.iterations, tally.requests, steps)

    @staticmethod
    def _inference(job: Job, at_s: float, service_class: ServiceClass) -> Inference:
        greedy = Sampling(temperature=0)
        return Inference(job.prompt, job.output_tokens, greedy, at_s, service_class=service_class)


Make = Callable[[Predictor], Policy]


def policies(factors: Sequence[float], max_step_s: float) -> dict[str, Make]:
    def budget(factor: float) -> Make:
        return lambda predictor: Budget(Orca(), predictor, factor, max_step_s)

    return {
        **{f"budget {factor:g}": budget(factor) for factor in factors},
        "fifo": lambda _: Orca(),
        "priority": lambda _: Priority(Orca()),
        "exclusive": lambda _: Exclusive(Orca()),
    }


def arrivals(shape: str, rate: float, duration_s: float, seed: int) -> list[float]:
    """Times of one path, in seconds, at exactly this rate on average."""
    process = parse_arrivals(SHAPES[shape])
    n = max(2, round(rate * duration_s))
    times = process.unit_times(n, np.random.SeedSequence(seed))
    times = times * (duration_s / max(horizon(process, times), float(times[-1])))
    return [float(at_s) for at_s in times]


def measure(
    bench: Bench, args: argparse.Namespace, advance: Callable[[str], None]
) -> tuple[float, Curve, list[Cell]]:
    """Tokens/s of deferred requests alone, the curve of all step times, and what was measured."""
    predictor = Predictor()
    advance("deferred requests alone")
    bench.play(Orca(), [], WARM_UP_S, BACKLOG, predictor)
    only = bench.play(Orca(), [], args.calibrate, BACKLOG, predictor)
    records = list(only.iterations)
    capacity = only.deferred_tokens_per_s / only.mean_output
    cells = []
    for load in args.loads:
        for shape in args.shapes:
            times = arrivals(shape, load * capacity, args.seconds, args.seed)
            learnt = copy.deepcopy(predictor)
            advance(f"{shape} at {load:.0%}: alone")
            runs = {"alone": bench.play(Orca(), times, args.seconds, 0, learnt)}
            for name, make in policies(args.factors, args.max_step_ms / 1000).items():
                advance(f"{shape} at {load:.0%}: {name}")
                own = copy.deepcopy(learnt)
                runs[name] = bench.play(make(own), times, args.seconds, BACKLOG, own)
            records += [record for run in runs.values() for record in run.iterations]
            cells.append(Cell(shape, load, runs))
    curve = fit(
        np.array([features(record) for record in records]),
        np.array([record.duration_s for record in records]),
    )
    return only.deferred_tokens_per_s, curve, cells


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="embedded", help="default: %(default)s")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--limit", type=int, default=32, help="batch limit")
    parser.add_argument("--seconds", type=float, help="of each of the runs; by default 7 or 9")
    parser.add_argument("--calibrate", type=float, help="seconds of deferred alone; 10 or 40")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS)
    parser.add_argument("--max-step-ms", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the table, the figure and the JSON")
    args = parser.parse_args(argv)
    if args.seconds is None:
        args.seconds = 7.0 if args.model == "embedded" else 9.0
    if args.calibrate is None:
        args.calibrate = 10.0 if args.model == "embedded" else 40.0
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    model = load_model(LoadOptions("dynamic", args.model, args.device, args.dtype, 0, args.limit))
    model.warm_up()
    sizes = Sizes() if args.model == "embedded" else SHORT
    clock = RealClock()
    bench = Bench(model, model.vocab_size, dynamic.generate, clock, args.limit, args.seed, sizes)
    runs = 1 + len(args.loads) * len(args.shapes) * (4 + len(args.factors))
    with tqdm(total=runs, desc="benchmark", file=sys.stderr) as bar:

        def advance(what: str) -> None:
            bar.set_postfix_str(what)
            bar.update()

        only, curve, cells = measure(bench, args, advance)
    name = "deferred" if args.model == "embedded" else f"deferred-{args.model.split(':')[-1]}"
    title = (
        f"{args.model}, {args.dtype}, batch limit {args.limit}, prompts of {sizes.prompt[0]} to "
        f"{sizes.prompt[1]} tokens, {sizes.output[0]} out on average, {args.seconds:g} s a run"
    )
    report(title, only, curve, cells, args.factors, args.limit, args.out, name)


if __name__ == "__main__":
    main()
