"""Pictures can be read, and are the same for the same figures."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from client.report.pictures import drawn, in_seconds


@pytest.mark.parametrize(
    ("low_s", "high_s"), [(0.02, 1.5), (0.01, 0.9), (0.01, 1.2), (0.005, 4.0), (0.0002, 60.0)]
)
def test_labels_in_seconds_side_by_side_do_not_overlap(low_s: float, high_s: float) -> None:
    def panel(axes: Axes) -> None:
        axes.plot([low_s, high_s], [0, 1])
        axes.set_xscale("log")
        in_seconds(axes.xaxis)
        renderer = FigureCanvasAgg(axes.get_figure(root=True)).get_renderer()
        axes.draw(renderer)
        low, high = axes.get_xlim()
        ticks = [t for t in axes.xaxis.get_major_ticks() if low <= t.get_loc() <= high]
        boxes = sorted((t.label1.get_window_extent(renderer) for t in ticks), key=lambda b: b.x0)
        assert len(boxes) >= 2
        assert all(one.x1 < other.x0 for one, other in pairwise(boxes))

    drawn("", panel, panel)


def test_the_same_figures_make_the_same_file() -> None:
    def panel(axes: Axes) -> None:
        axes.plot([1, 2], [0, 1], label="a system")
        axes.legend()

    first, again = (drawn("a title", panel).svg for _ in range(2))
    assert first == again
    assert first.startswith("<svg")
