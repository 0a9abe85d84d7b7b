"""How pictures are drawn: one style, and SVG for pages and files."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from client.report.words import seconds

STYLE: dict[Any, Any] = {
    "figure.dpi": 110, "savefig.dpi": 130, "font.size": 10, "axes.grid": True, "grid.alpha": 0.25,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "legend.frameon": False, "axes.axisbelow": True,
    "text.parse_math": False, "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same figures, the same file
}  # fmt: skip
_WIDTH, _LEFT = 5.6, 0.85  # of a panel, and of the labels beside it
Panel = Callable[[Axes], None]


@dataclass(frozen=True, slots=True)
class Picture:
    """``title`` is the alternative text: tables beside pictures hold the figures."""

    title: str
    svg: str


def drawn(title: str, *panels: Panel, height: float = 3.6) -> Picture:
    """Panels side by side; in inches."""
    width = _WIDTH * len(panels)
    with mpl.rc_context(STYLE):
        figure = Figure((width, height))
        for k, panel in enumerate(
            panels
        ):  # a layout that looks for its margins takes twice as long
            left, within = (k * _WIDTH + _LEFT) / width, (_WIDTH - _LEFT - 0.1) / width
            panel(figure.add_axes((left, 0.55 / height, within, 1 - 0.9 / height)))
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return Picture(title, text[text.index("<svg") :])


def named(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def in_seconds(axis: Axis) -> None:
    """Labels of a logarithmic axis, which is one already."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
