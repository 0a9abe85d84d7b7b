"""docs/img/load-*.png: every shape of load with 4,000 requests, seed 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.harness.picture import plt
from client.report.pictures.shape import STYLE, draw_shape, save
from client.workloads.arrivals import horizon, parse_arrivals
from client.workloads.burstiness import describe, idc_curve

REQUESTS = 4000
SHAPES = (
    "constant", "poisson", "gamma:cv=3", "plan:low", "plan:medium", "plan:high",
)  # fmt: skip


def overview(path: Path) -> Path:
    """Arrivals per hundredth of the time for every shape, one scale, with what it measures as."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(SHAPES), 1, figsize=(9, 7.5), layout="constrained", sharex=True
        )
        for axes, shape in zip(panels, SHAPES, strict=True):
            process = parse_arrivals(shape)
            times = process.unit_times(REQUESTS, np.random.SeedSequence(0))
            end = horizon(process, times)
            found = describe(times, end)
            axes.hist(times / end, bins=np.linspace(0, 1, 101).tolist(), color="#2a7fb8")
            axes.axhline(REQUESTS / 100, color="#c0392b", lw=0.8)
            axes.set_ylim(0, max(160, axes.get_ylim()[1]))
            axes.set_title(
                f"{shape}   CV of gaps {found.cv:.2f}, CV of the rate {found.cv_rate:.2f}",
                loc="left", fontsize=9,
            )  # fmt: skip
        panels[-1].set_xlabel(
            f"share of the time; bars: of {REQUESTS:,} arrivals, those in one hundredth; line: mean"
        )
    return save(figure, path)


def dispersion(path: Path) -> Path:
    """IDC over windows: gaps alone cannot make slow bursts, plans can."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9.5, 4.4), layout="constrained")
        for shape in SHAPES:
            process = parse_arrivals(shape)
            times = process.unit_times(40_000, np.random.SeedSequence(0))
            widths, values = idc_curve(times, horizon(process, times))
            axes.loglog(widths, np.maximum(values, 1e-3), label=shape, lw=1.4)
        axes.axhline(1, color="black", lw=0.8, ls=":")
        axes.set_ylim(bottom=0.05)
        axes.set_xlabel("window in mean gaps")
        axes.set_ylabel("index of dispersion for counts")
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save(figure, path)


def draw(folder: Path) -> None:
    made = [overview(folder / "load-shapes.png"), dispersion(folder / "load-dispersion.png")]
    process = parse_arrivals("plan:high")
    times = process.unit_times(REQUESTS, np.random.SeedSequence(0)) / 10
    made.append(draw_shape(times, REQUESTS / 10, folder / "load-plan-high.png", "plan:high"))
    for path in made:
        print(path)
