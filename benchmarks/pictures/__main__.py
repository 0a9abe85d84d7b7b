"""Draws the same 20 requests under each mode and policy, from real iterations.

    python -m benchmarks.pictures                 # docs/img/modes.png and docs/img/policies.png

Each line is a request, from its arrival to its end, on the machine's own clock: grey while it
waits, orange in iterations that compute tokens of its prompt, blue while it decodes, and hatched
while its row is computed although it is done."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np

from batching import BatchingManager
from benchmarks.common import Tally, cpu_name
from benchmarks.pictures.page import save
from engine.inference import Inference
from engine.records import Event
from generate import modes
from generate.modes import ModeName, make_ledger
from model import LoadOptions, load_model
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from scheduling.policies.tgi import TGI
from seams import IterationRecord, Policy, Sampling

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

LIMIT = 6
COLOURS = {"waiting": "#d5d5d5", "prefill": "#e8833a", "decode": "#3b75af", "held": "#9fc3e0"}


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


PICTURES = {"modes": MODES, "policies": POLICIES}


def twenty_requests(vocab_size: int) -> list[tuple[list[int], int, float]]:
    """(prompt, tokens to generate, arrival after s): a Poisson process of short and long ones."""
    rng = np.random.default_rng(5)
    arrivals = np.cumsum(rng.exponential(0.012, 20))
    return [
        (
            rng.integers(0, vocab_size, rng.choice([8, 40, 300], p=[0.5, 0.3, 0.2])).tolist(),
            int(rng.choice([10, 30, 90], p=[0.4, 0.4, 0.2])),
            float(arrival),
        )
        for arrival in arrivals
    ]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    inferences: list[Inference]
    events: Sequence[Event]  # of the manager's history


def run(case: Case, deferred: Collection[int] = ()) -> Trace:
    """The requests in real time: each is submitted when its arrival has come. `deferred`: the
    numbers of those in that class."""
    model = load_model(LoadOptions(case.mode, "embedded", "auto", "float32", 0, LIMIT))
    model.warm_up()
    manager = BatchingManager(case.policy(), Tally(), max_batch_size=LIMIT, max_waiting=100)
    manager.serve(model, make_ledger(case.mode, model))
    start_s = time.perf_counter()
    inferences = [
        Inference(
            prompt,
            tokens,
            Sampling(temperature=0),
            start_s + arrival,
            service_class="deferred" if number in deferred else "immediate",
        )
        for number, (prompt, tokens, arrival) in enumerate(twenty_requests(4096))
    ]
    pending = list(inferences)
    while pending or any(inference.record is None for inference in inferences):
        while pending and pending[0].arrival_s <= time.perf_counter():
            manager.enqueue(pending.pop(0))
        manager.step(modes.MODES[case.mode].lay_out, time.perf_counter)
    return Trace(case.name, inferences, manager.history.since(0).events)


def stretches(events: Sequence[Event]) -> Iterator[tuple[int, str, float, float]]:
    """Request, what its row did, start and duration, of each row of each iteration."""
    for event in events:
        if isinstance(event, IterationRecord):
            for row in event.rows:
                phase = "prefill" if row.kind == "chunk" else row.kind
                if phase != "paused":
                    yield row.request, phase, event.start_s, event.duration_s


def draw(traces: Sequence[Trace], path: Path) -> None:
    figure, axes = plt.subplots(
        len(traces), 1, figsize=(9, 2.6 * len(traces)), sharex=True, layout="constrained"
    )
    for axis, trace in zip(axes, traces, strict=True):
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
        for request, phase, start_s, duration_s in stretches(trace.events):
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
        axis.set_title(trace.name, loc="left", fontsize=10)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="default: %(default)s")
    parser.add_argument("--only", choices=PICTURES, help="one of the pictures")
    args = parser.parse_args()
    for picture, cases in PICTURES.items():
        if args.only in (None, picture):
            draw([run(case) for case in cases], args.out / f"{picture}.png")


if __name__ == "__main__":
    main()
