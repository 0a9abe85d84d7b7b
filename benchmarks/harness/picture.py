"""Pictures for a page of docs/: matplotlib without a window."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

matplotlib.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["plt", "save", "without_frame"]


def without_frame(axis: Axes, grid: str = "both") -> None:
    axis.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(path)
