"""This project's engine on a peer's task, in a separate process like the peers.

python -m benchmarks.peers.ours TASK.json RESULT.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast

import torch

from benchmarks.bare import POLICY_OF, Job, loaded, run_bare
from benchmarks.limits import Pass
from benchmarks.peers.runner import WARM_UP_TOKENS, Done, Task
from generate.modes import ModeName


def main() -> None:
    task = Task(**json.loads(Path(sys.argv[1]).read_text()))
    mode = cast(ModeName, task.runner)
    weights, dtype = (task.file, "auto") if task.file else (task.folder, task.dtype)
    model = loaded(weights, dtype, task.limit, mode)
    jobs = [Job(p, n) for p, n in zip(task.prompts, task.output_tokens, strict=True)]
    few = [Job(job.prompt, min(job.output_tokens, WARM_UP_TOKENS)) for job in jobs]
    run_bare(model, POLICY_OF[mode](), mode, few, task.limit)
    run = run_bare(model, POLICY_OF[mode](), mode, jobs, task.limit)
    passes = [
        Pass(done.num_tokens, done.num_drawn, done.context, done.attended)
        for done in run.tally.iterations
    ]
    kernels = ", ".join(sorted(set(model.info.kernels.values())))
    settings = f"{task.runner}, {torch.get_num_threads()} threads, {kernels}"
    done = Done(run.seconds, run.outputs, settings, passes)
    Path(sys.argv[2]).write_text(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
