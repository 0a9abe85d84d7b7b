"""The curve: what a token budget costs in throughput, and what it saves in stalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.picture import plt, save, without_frame
from benchmarks.harness.turns import Ratio

MOST_STALL, LEAST_THROUGHPUT = 3.0, 0.97  # what `auto` is built to reach


@dataclass(frozen=True, slots=True)
class Point:
    """A side: p99 ITL beside prompts to the undisturbed one, tokens per second to orca's."""

    stall: Ratio
    throughput: Ratio


def _error(ratio: Ratio) -> list[list[float]]:
    """As matplotlib takes it; one round has no interval."""
    low, high = ratio.low or ratio.value, ratio.high or ratio.value
    return [[ratio.value - low], [high - ratio.value]]


def draw(points: Mapping[str, Point], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    fixed = [point for name, point in points.items() if name.isdecimal()]
    axes.plot([p.stall.value for p in fixed], [p.throughput.value for p in fixed], color="#bbbbbb")
    for name, point in points.items():
        color = "#4c78a8" if name.isdecimal() else "#e45756"
        at = point.stall.value, point.throughput.value
        x_error, y_error = _error(point.stall), _error(point.throughput)
        axes.errorbar(*at, y_error, x_error, fmt="o", color=color, elinewidth=0.8)
        if name.isdecimal():
            axes.annotate(name, at, textcoords="offset points", xytext=(6, -12), color=color)
        else:  # above its interval: `auto` lies on the curve, close to a fixed budget
            top, short = (at[0], at[1] + y_error[1][0]), name.removeprefix("stall-free, ")
            axes.annotate(short, top, textcoords="offset points", xytext=(4, 4), color=color)
    axes.axvline(MOST_STALL, color="#999999", lw=1, ls="--")
    axes.axhline(LEAST_THROUGHPUT, color="#999999", lw=1, ls="--")
    axes.set_xscale("log")
    axes.set_xlabel("p99 ITL of the others while prompts are computed, to the undisturbed one")
    axes.set_ylabel("prompt and output tokens/s, to orca")
    without_frame(axes)
    save(figure, path)
