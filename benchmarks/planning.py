"""The CPU time of each policy's plans with 64 rows and 1,000 waiting requests, as a share of a
step.

    python -m benchmarks.planning                                # SmolLM2-135M's shape, seconds
    python -m benchmarks.planning --model random:gpt2-medium --policies hrrn vtc
    python -m benchmarks.planning --step-ms 40                   # of a step measured elsewhere

The loop is the server's, without HTTP. A plan counts from its call to its return, with what the
policy observes afterwards, in CPU time of the loop's thread; a step, in which all rows decode, in
real time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from batching import BatchingManager
from benchmarks.bare import GREEDY, Tally, loaded
from benchmarks.harness.report import options, report
from benchmarks.no_model import NoModel
from client.analysis.statistics import Floats
from client.experiment import Experiment
from engine.inference import Inference
from generate.modes import MODES, make_ledger
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from scheduling.registry import PAUSING, POLICIES, make_policy
from seams import Model, Observer, Policy, Recorder
from serving.config import RESIDENT_WHERE_PAUSED, Config

ROWS, WAITING = 64, 1000
STEPS = 60
MOST_TOKENS = 300  # of a prompt and its response
USERS, CALLS = 20, 10
MOST_SHARE = 0.05  # of a step


def main() -> None:
    parser = options(__doc__, model="random:smollm2-135m", dtype="bfloat16")
    parser.add_argument("--policies", nargs="+", choices=[*POLICIES], default=[*POLICIES])
    parser.add_argument("--step-ms", type=float, help="of a step; measured if not given")
    args = parser.parse_args()
    step_ms = args.step_ms or measured_step_ms(args.model, args.dtype)
    sides = {name: partial(plans_us, name) for name in args.policies}
    metrics: dict[str, Callable[[Floats], float]] = {
        "plan_us": lambda plans: float(np.median(plans)),
        "p99_us": lambda plans: float(np.quantile(plans, 0.99)),
        "percent_of_a_step": lambda plans: float(np.median(plans)) / 10 / step_ms,
    }
    found = Experiment(sides, metrics, args.policies[0]).run(args.rounds)
    costly = [n for n in sides if median(found.figures(n)) > 1e3 * MOST_SHARE * step_ms]
    title = f"{args.model}, {ROWS} rows, {WAITING} waiting, a step of {step_ms:.1f} ms"
    also = f"More than {MOST_SHARE:.0%} of a step: {', '.join(costly) or 'none'}."
    report([found], title, args.out, "planning", also, model=args.model, step_ms=step_ms)


def measured_step_ms(name: str, dtype: str) -> float:
    """A step in which all rows decode, with the real model."""
    model = loaded(name, dtype, ROWS, device="auto", max_model_len=MOST_TOKENS)
    tally = drive(model, Orca(), requests(ROWS), STEPS // 2, ROWS)
    return 1e3 * median(record.duration_s for record in tally.iterations[STEPS // 4 :])


def plans_us(name: str, _: int) -> Floats:
    """Of each plan, once the first third is over, with a model that computes nothing."""
    predictor, plans_s = Predictor(), list[float]()
    config = Config(mode="dynamic", policy=name, max_batch_size=ROWS)
    policy: Any = make_policy(name, config, predictor)

    def timed(function: Callable[..., Any], begins: bool) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start_s = time.thread_time()
            result = function(*args)
            if begins:
                plans_s.append(0.0)
            plans_s[-1] += time.thread_time() - start_s
            return result

        return call

    policy.plan = timed(policy.plan, True)
    if isinstance(policy, Observer):
        policy.observe = timed(policy.observe, False)  # type: ignore[method-assign]
    model = NoModel(MOST_TOKENS, RESIDENT_WHERE_PAUSED * ROWS * MOST_TOKENS)
    resident = (RESIDENT_WHERE_PAUSED if name in PAUSING else 1) * ROWS
    drive(model, policy, requests(WAITING + 2 * ROWS), STEPS, resident, predictor)
    return 1e6 * np.array(plans_s)[STEPS // 3 :]


def drive(
    model: Model, policy: Policy, work: Sequence[Inference], iterations: int, resident: int,
    *recorders: Recorder,
) -> Tally:  # fmt: skip
    """So many iterations, all of the work present."""
    tally = Tally()
    manager = BatchingManager(
        policy,
        [tally, *recorders],
        max_batch_size=ROWS,
        max_waiting=len(work),
        max_resident=resident,
    )
    manager.serve(model, make_ledger("dynamic", model))
    for inference in work:
        manager.enqueue(inference)
    for _ in range(iterations):
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)
    return tally


def requests(count: int) -> list[Inference]:
    """Of users, programs, priorities and targets."""
    rng, now_s = np.random.default_rng(0), time.perf_counter()
    return [
        Inference(
            rng.integers(0, 250, int(rng.integers(4, 65))).tolist(), int(rng.integers(8, 200)),
            GREEDY, now_s, priority=k % 3, user=1 + k % USERS, program=1 + k // CALLS,
            ttft_target_s=1.0 + k % 7, tpot_target_s=0.2, predicted=int(rng.integers(8, 200)),
        )
        for k in range(count)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
