"""Pictures of a load's shape: its rate, its cumulated arrivals, its dispersion over windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from client.workloads.burstiness import Times, idc_curve

STYLE: dict[Any, Any] = {
    "figure.dpi": 110, "savefig.dpi": 130, "font.size": 10, "axes.grid": True,
    "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False,
    "legend.frameon": False, "axes.axisbelow": True,
}  # fmt: skip


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def draw_shape(times: Times, duration_s: float, path: Path, title: str) -> Path:
    """Arrivals per window with the mean, arrivals so far, IDC over windows, tail of the gaps."""
    span = max(duration_s, float(times[-1]), 1e-9)
    with plt.rc_context(STYLE):
        figure, ((rate, total), (dispersion, gaps)) = plt.subplots(
            2, 2, figsize=(10, 5.6), layout="constrained"
        )
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        rate.hist(times, bins=np.linspace(0, span, 101).tolist(), color="#2a7fb8")
        rate.axhline(times.size / 100, color="#c0392b", lw=1, label="mean")
        rate.set_ylabel("arrivals in 1/100 of the time")
        rate.set_xlabel("seconds")
        rate.legend(loc="upper right")
        total.plot(times, np.arange(1, times.size + 1), color="#2a7fb8", lw=1.4)
        total.plot([0, span], [0, times.size], color="#c0392b", lw=1)
        total.set_ylabel("arrivals so far")
        total.set_xlabel("seconds")
        if duration_s > 0 and times.size >= 20:
            widths, values = idc_curve(times, duration_s)
            dispersion.loglog(widths, np.maximum(values, 1e-3), "o-", ms=3, color="#2a7fb8")
        dispersion.axhline(1, color="#c0392b", lw=1, label="Poisson")
        dispersion.set_ylabel("index of dispersion")
        dispersion.set_xlabel("window in seconds")
        dispersion.legend(loc="upper left")
        positive = np.sort(np.diff(times))
        positive = positive[positive > 0]
        if positive.size:
            mean = span / times.size
            share = 1 - np.arange(positive.size) / positive.size
            gaps.loglog(positive / mean, share, color="#2a7fb8", lw=1.4)
            x = np.geomspace(max(positive[0] / mean, 1e-4), max(positive[-1] / mean, 2), 200)
            gaps.loglog(x, np.exp(-x), color="#c0392b", lw=1, label="exponential")
            gaps.set_ylim(bottom=0.5 / positive.size)
            gaps.legend(loc="lower left")
        gaps.set_ylabel("share of gaps at least so long")
        gaps.set_xlabel("gap / mean gap")
    return save(figure, path)
