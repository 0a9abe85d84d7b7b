"""The budget of a recorded step as a picture: docs/img/step.png."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.harness.picture import plt, save, without_frame
from benchmarks.kernels.step import LINEARS, Part
from benchmarks.limits import Limits

RECORDED = Path("results/reference-step/step.json")
COLOURS = {"attention": "#d55e00", "linear layers": "#4c78a8", "everything else": "#999999"}


def kind(part: str) -> str:
    if part in LINEARS:
        return "linear layers"
    return part if part == "attention" else "everything else"


def draw(folder: Path) -> None:
    report = json.loads(RECORDED.read_text())
    limits, shape = Limits(**report["limits"]), report["shape"]
    (dtype,) = limits.operations_per_s
    parts = sorted((Part(**part) for part in report["parts"]), key=lambda part: part.seconds)
    whole_s = sum(part.seconds for part in parts)
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    for line, part in enumerate(parts):
        share = part.seconds / whole_s
        axis.barh(line, 1000 * part.seconds, color=COLOURS[kind(part.name)])
        text = f"{share:.0%}" if share >= 0.01 else "under 1%"
        axis.text(1000 * part.seconds + 0.3, line, text, va="center", fontsize=9)
        if limit_s := part.limit_s(limits, dtype):
            axis.vlines(1000 * limit_s, line - 0.4, line + 0.4, color="black", linewidth=2)
    axis.set_yticks(range(len(parts)), [part.name for part in parts])
    axis.set_xlabel(f"milliseconds; {report['machine']['cpu']}, {report['machine']['cores']} cores")
    axis.set_title(
        f"{1000 * whole_s:.0f} ms for {shape['rows']} rows in {dtype}; tokens of each row: "
        f"{shape['tokens']} new, {shape['past']} earlier",
        loc="left", fontsize=10,
    )  # fmt: skip
    axis.legend(
        handles=[
            *(Patch(color=colour, label=name) for name, colour in COLOURS.items()),
            Line2D([], [], color="black", linewidth=2, label="the machine's limit"),
        ],
        loc="lower right",
        frameon=False,
    )
    without_frame(axis, "x")
    save(figure, folder / "step.png")
