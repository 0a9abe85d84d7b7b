"""The same 20 requests under each mode and policy, from real iterations: docs/img/modes.png and
policies.png.

Each line is a request, from its arrival to its end, on the machine's own clock: grey while it
waits, orange in iterations that compute tokens of its prompt, blue while it decodes, and hatched
while its row is computed although it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.patches import Patch

from benchmarks.harness.picture import plt, save
from benchmarks.harness.report import cpu_name
from benchmarks.pictures.twenty import LIMIT, Trace
from records import Event, IterationRecord

COLOURS = {"waiting": "#d5d5d5", "prefill": "#e8833a", "decode": "#3b75af", "held": "#9fc3e0"}


def row_phases(events: Sequence[Event]) -> Iterator[tuple[int, str, float, float]]:
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
