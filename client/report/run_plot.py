"""The picture of one run: the load above the latency it caused."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from client.analysis.metrics import Measured
from client.load.records import Run
from client.report.plots import STYLE, log_scale, save


def draw_run(run: Run, m: Measured, path: Path) -> Path:
    """Arrivals, requests in flight and latency over one time axis."""
    with plt.rc_context(STYLE):
        figure, (top, middle, bottom) = plt.subplots(
            3, 1, figsize=(9, 7), layout="constrained", sharex=True, height_ratios=(1, 1, 2)
        )
        end_s = max(run.window_end_s, 1e-3)
        origins = np.array([o.origin_s for o in run.outcomes])
        top.hist(origins, bins=np.linspace(0, end_s, 81).tolist(), color="#9aa5b1")
        top.set_ylabel("arrivals")
        top.set_title("The load, and the latency it caused", loc="left")
        times, counts = zip(*run.in_flight, strict=True) if run.in_flight else ((), ())
        middle.plot(times, counts, drawstyle="steps-post", color="#2a7fb8", lw=1.2)
        middle.set_ylabel("in flight")
        middle.axvspan(0, m.warm_up_s, color="#eeeeee", lw=0)
        middle.axvspan(end_s, max(run.wall_s, end_s), color="#eeeeee", lw=0)
        middle.text(
            1.0, 1.02, "grey: outside the measured window", transform=middle.transAxes,
            ha="right", fontsize=8, color="#555555",
        )  # fmt: skip
        for name, at, c in (
            ("TTFT", [(o.origin_s, o.first_s) for o in run.outcomes if o.ok], "#5e9c51"),
            ("E2E", [(o.origin_s, o.end_s) for o in run.outcomes if o.ok], "#2a7fb8"),
        ):
            known = [(x, y - x) for x, y in at if y is not None and y > x]
            if known:
                bottom.plot(*zip(*known, strict=True), ".", ms=4, color=c, label=name)
        missed = [o.origin_s for o in run.outcomes if not o.ok]
        if missed:
            bottom.plot(
                missed, [1.02] * len(missed), "x", color="#c0392b", clip_on=False,
                transform=bottom.get_xaxis_transform(), label="failed or unfinished",
            )  # fmt: skip
        log_scale(bottom)
        bottom.set_ylabel("seconds")
        bottom.set_xlabel("intended time in seconds")
        if bottom.has_data():
            bottom.legend(loc="upper left", ncols=3)
    return save(figure, path)
