"""The pictures of the pages, from real iterations and of the shapes of load.

python -m benchmarks.pictures                 # all of them, in docs/img
python -m benchmarks.pictures --only modes
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.pictures import requests, save
from client.workloads.arrivals import horizon, parse_arrivals
from client.workloads.burstiness import describe

ARRIVALS = 4000
SHAPES = ("constant", "poisson", "gamma:cv=3", "plan:low", "plan:medium", "plan:high")


def load(folder: Path) -> None:
    """Arrivals per hundredth of the time for every shape, one scale, with what it measures as."""
    figure, panels = plt.subplots(
        len(SHAPES), 1, figsize=(9, 7.5), layout="constrained", sharex=True
    )
    for axes, shape in zip(panels, SHAPES, strict=True):
        process = parse_arrivals(shape)
        times = process.unit_times(ARRIVALS, np.random.SeedSequence(0))
        end = horizon(process, times)
        found = describe(times, end)
        axes.hist(times / end, bins=np.linspace(0, 1, 101).tolist(), color="#2a7fb8")
        axes.axhline(ARRIVALS / 100, color="#c0392b", lw=0.8)
        axes.set_ylim(0, max(160, axes.get_ylim()[1]))
        axes.spines[["top", "right"]].set_visible(False)
        title = f"{shape}   CV of gaps {found['cv']:.2f}, CV of the rate {found['cv_rate']:.2f}"
        axes.set_title(title, loc="left", fontsize=9)
    panels[-1].set_xlabel(
        f"share of the time; bars: of {ARRIVALS:,} arrivals, those in one hundredth; line: mean"
    )
    save(figure, folder / "load-shapes.png")


PICTURES: dict[str, Callable[[Path], None]] = {
    "modes": lambda folder: requests.draw(requests.MODES, folder / "modes.png"),
    "policies": lambda folder: requests.draw(requests.POLICIES, folder / "policies.png"),
    "load": load,
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="default: %(default)s")
    parser.add_argument("--only", choices=PICTURES, help="one of the pictures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        if args.only in (None, name):
            draw(args.out)


if __name__ == "__main__":
    main()
