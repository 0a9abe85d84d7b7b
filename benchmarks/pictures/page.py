"""What the commands that draw one picture for a page of docs/ have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def without_frame(axis: Axes, grid: str = "both") -> None:
    axis.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(path)


def command(doc: str | None, draw: Callable[[Path], None]) -> None:
    """`draw` gets the folder."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="default: %(default)s")
    draw(parser.parse_args().out)
