"""The same 20 requests under each mode and policy, from real iterations: docs/img/modes.png and
policies.png.

Each line is a request, from its arrival to its end, on the machine's own clock: grey while it
waits, orange in iterations that compute tokens of its prompt, blue while it decodes, and hatched
while its row is computed although it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from benchmarks.bare import BareRun, Job, loaded, run_bare
from benchmarks.harness.report import cpu_name
from benchmarks.pictures import save
from engine.lifecycle import Event
from generate.modes import ModeName
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from scheduling.policies.tgi import TGI
from seams import IterationRecord, Policy

LIMIT = 6


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    mode: ModeName
    policy: Callable[[], Policy]


MODES = [
    Case("nobatch: one at a time", "nobatch", NoBatch),
    Case(
        "static: a batch runs until its longest request is done",
        "static",
        lambda: Static(max_wait_s=0.02),
    ),
    Case("dynamic: requests join and leave at every iteration", "dynamic", Orca),
]


POLICIES = [
    Case("orca: prompts join the decodes of the others", "dynamic", Orca),
    Case(
        "tgi: prefill interrupts decode",
        "dynamic",
        lambda: TGI(max_batch_prefill_tokens=512, waiting_served_ratio=0.3, max_waiting_tokens=20),
    ),
    Case(
        "stall-free: decodes, and 64 tokens an iteration with pieces of prompts",
        "dynamic",
        lambda: StallFree(token_budget=64),
    ),
    Case(
        "shortest-first: requests for few tokens before the others",
        "dynamic",
        lambda: ShortestFirst(max_bypass=8),
    ),
]


def twenty_requests(vocab_size: int) -> list[Job]:
    """A Poisson process of short and long ones."""
    rng = np.random.default_rng(5)
    return [
        Job(
            rng.integers(0, vocab_size, rng.choice([8, 40, 300], p=[0.5, 0.3, 0.2])).tolist(),
            int(rng.choice([10, 30, 90], p=[0.4, 0.4, 0.2])),
            float(arrival_s),
        )
        for arrival_s in np.cumsum(rng.exponential(0.012, 20))
    ]


def run(case: Case) -> BareRun:
    """The requests as they arrive, by a clock that begins at zero; a time without work is
    skipped."""
    model = loaded("embedded", "float32", LIMIT, case.mode, device="auto")
    work, start_s = twenty_requests(model.vocab_size), time.perf_counter()
    clock = lambda: time.perf_counter() - start_s  # noqa: E731
    return run_bare(model, case.policy(), case.mode, work, LIMIT, clock=clock)


COLOURS = {"waiting": "#d5d5d5", "prefill": "#e8833a", "decode": "#3b75af", "held": "#9fc3e0"}


def row_phases(events: Sequence[Event]) -> Iterator[tuple[int, str, float, float]]:
    """Request, what its row did, start and duration, of each row of each iteration."""
    for event in events:
        if isinstance(event, IterationRecord):
            for row in event.rows:
                phase = "prefill" if row.kind == "chunk" else row.kind
                if phase != "paused":
                    yield row.request, phase, event.start_s, event.duration_s


def draw(cases: Sequence[Case], path: Path) -> None:
    figure, axes = plt.subplots(
        len(cases), 1, figsize=(9, 2.6 * len(cases)), sharex=True, layout="constrained"
    )
    for axis, case in zip(axes, cases, strict=True):
        trace = run(case)
        origin_s = trace.inferences[0].arrival_s
        lines = {inference.id: i for i, inference in enumerate(trace.inferences)}
        for inference in trace.inferences:
            assert inference.record is not None
            axis.barh(
                lines[inference.id],
                inference.record.end_s - inference.arrival_s,
                left=inference.arrival_s - origin_s,
                color=COLOURS["waiting"],
                height=0.8,
            )
        for request, phase, start_s, duration_s in row_phases(trace.events):
            held = phase == "held"
            axis.barh(
                lines[request],
                duration_s,
                left=start_s - origin_s,
                color=COLOURS[phase],
                height=0.8,
                hatch="////" if held else None,
                edgecolor="white" if held else None,
                linewidth=0,
            )
        axis.set_title(case.name, loc="left", fontsize=10)
        axis.set_ylabel("request")
        axis.set_yticks(range(0, len(lines), 5))
        axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds since the first arrival")
    labels = {
        "waiting": "waiting, paused, or done and held back",
        "prefill": "prefill",
        "decode": "decode",
        "held": "done, row still computed",
    }
    figure.legend(
        handles=[
            Patch(color=COLOURS[key], label=text, hatch="////" if key == "held" else None)
            for key, text in labels.items()
        ],
        loc="outside lower center",
        ncols=4,
        fontsize=9,
        frameon=False,
        title=f"embedded model, batch limit {LIMIT}, {cpu_name()}",
        title_fontsize=8,
    )
    save(figure, path)
