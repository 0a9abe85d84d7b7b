"""Our own engine at a peer's task, in a process of its own, as the peers are.

python -m benchmarks.peers.ours TASK.json RESULT.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.common import Job, run_bare
from benchmarks.limits import Pass, pass_of
from benchmarks.modes.__main__ import MODES
from benchmarks.peers.runner import WARM_UP_TOKENS, Task
from model import LoadOptions, load_model
from seams import Model, Outcome, Row


@dataclass(frozen=True, slots=True)
class OursDone:
    """As `runner.Done`, and the iterations that it took."""

    seconds: float
    outputs: list[list[int]]
    settings: str
    passes: list[Pass]


def main() -> None:
    task = Task(**json.loads(Path(sys.argv[1]).read_text()))
    make_policy, layout = MODES[task.runner]
    model = load_model(LoadOptions(task.runner, task.folder, "cpu", task.dtype, 0, task.limit))
    model.warm_up()
    passes: list[Pass] = []

    def generate(model: Model, rows: Sequence[Row]) -> Outcome:
        passes.append(pass_of((r.start, len(r.tokens), r.draw is not None) for r in rows))
        return layout(model, rows)

    jobs = [Job(p, n) for p, n in zip(task.prompts, task.output_tokens, strict=True)]
    few = [Job(job.prompt, min(job.output_tokens, WARM_UP_TOKENS)) for job in jobs]
    run_bare(model, make_policy(), generate, few, task.limit)
    passes.clear()
    run = run_bare(model, make_policy(), generate, jobs, task.limit)
    settings = f"{task.runner}, {torch.get_num_threads()} threads"
    done = OursDone(run.seconds, run.outputs, settings, passes)
    Path(sys.argv[2]).write_text(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
