"""This project's engine on a peer's task, in a separate process like the peers.

python -m benchmarks.peers.ours TASK.json RESULT.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch

from benchmarks.bare import POLICY_OF, Job, run_bare
from benchmarks.limits import Pass, pass_of
from benchmarks.peers.runner import WARM_UP_TOKENS, Task
from generate.modes import ModeName
from model import LoadOptions, load_model
from requested import Sampling
from seams import Plan, Policy, Request, View


@dataclass(frozen=True, slots=True)
class OursDone:
    """A `runner.Done` with its iterations."""

    seconds: float
    outputs: list[list[int]]
    settings: str
    passes: list[Pass]


class Watched:
    """A policy that records what each iteration computes."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.answers = policy, policy.answers
        self.passes: list[Pass] = []

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(view)
        rows = [(r.computed, n, r.computed + n == r.known) for r, n in plan.advance]
        if rows:
            self.passes.append(pass_of([*rows, *((r.computed, 0, False) for r in plan.hold)]))
        return plan

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return self.policy.retire(resident)


def main() -> None:
    task = Task(**json.loads(Path(sys.argv[1]).read_text()))
    mode = cast(ModeName, task.runner)
    weights, dtype = (task.file, "auto") if task.file else (task.folder, task.dtype)
    model = load_model(LoadOptions(mode, weights, "cpu", dtype, 0, task.limit))
    model.warm_up()
    jobs = [Job(p, n) for p, n in zip(task.prompts, task.output_tokens, strict=True)]
    few = [Job(job.prompt, min(job.output_tokens, WARM_UP_TOKENS)) for job in jobs]
    sampling = Sampling(temperature=task.temperature, top_p=task.top_p)
    run_bare(model, POLICY_OF[mode](), mode, few, task.limit, sampling)
    policy = Watched(POLICY_OF[mode]())
    run = run_bare(model, policy, mode, jobs, task.limit, sampling)
    kernels = ", ".join(sorted(set(model.info.kernels.values())))
    settings = f"{task.runner}, {torch.get_num_threads()} threads, {kernels}"
    done = OursDone(run.seconds, run.outputs, settings, policy.passes)
    Path(sys.argv[2]).write_text(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
