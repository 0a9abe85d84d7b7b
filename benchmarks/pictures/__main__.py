"""The pictures of the pages: what a row of a batch costs, and the shapes of load.

python -m benchmarks.pictures                 # all of them, in docs/img
python -m benchmarks.pictures --only rows
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.bare import Job, loaded, run_bare
from benchmarks.harness.report import cpu_name
from benchmarks.pictures import save
from client.workloads.arrivals import horizon, parse_arrivals
from client.workloads.burstiness import describe
from scheduling.policies.orca import Orca
from seams import IterationRecord

ARRIVALS = 4000
MODELS = ("embedded", "random:gpt2-medium")
ROWS = (1, 2, 4, 8, 16, 32)
CALM, CAUTION = "#2a7fb8", "#c0392b"
SHAPES = ("constant", "poisson", "gamma:cv=3", "plan:low", "plan:medium", "plan:high")


def load(folder: Path) -> None:
    """Arrivals per hundredth of the time for every shape, one scale, with what it measures as."""
    figure, panels = plt.subplots(
        len(SHAPES), 1, figsize=(9, 7.5), layout="constrained", sharex=True, sharey=True
    )
    for axes, shape in zip(panels, SHAPES, strict=True):
        process = parse_arrivals(shape)
        times = process.unit_times(ARRIVALS, np.random.SeedSequence(0))
        end = horizon(process, times)
        found = describe(times, end)
        axes.hist(times / end, bins=np.linspace(0, 1, 101).tolist(), color=CALM)
        axes.axhline(ARRIVALS / 100, color=CAUTION, lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        title = f"{shape}   CV of gaps {found['cv']:.2f}, CV of the rate {found['cv_rate']:.2f}"
        axes.set_title(title, loc="left", fontsize=9)
    panels[-1].set_xlabel(
        f"share of the time; bars: of {ARRIVALS:,} arrivals, those in one hundredth; line: mean"
    )
    save(figure, folder / "load-shapes.png")


def rows(folder: Path) -> None:
    """Medians of decoding iterations with 1 to 32 rows, beside as many iterations of one row."""
    figure, panels = plt.subplots(1, len(MODELS), figsize=(9, 3.4), layout="constrained")
    for axes, name in zip(panels, MODELS, strict=True):
        model = loaded(name, "float32", max(ROWS), device="auto")
        work = [Job([5] * 16, 40)]
        times_ms = []
        run_bare(model, Orca(), "dynamic", work, 1)  # the first run of a process is slower
        for count in ROWS:
            events = run_bare(model, Orca(), "dynamic", work * count, count).events
            decodes = [
                e for e in events if isinstance(e, IterationRecord) and e.num_tokens == count
            ]
            times_ms.append(1000 * median(one.duration_s for one in decodes))
        alone = [count * times_ms[0] for count in ROWS]
        axes.plot(ROWS, alone, "--", color=CAUTION, label="one request after the other")
        axes.plot(ROWS, times_ms, "o-", color=CALM, label="together, in one iteration")
        for count, time_ms in zip(ROWS, times_ms, strict=True):
            axes.annotate(
                f"{time_ms:.1f}", (count, time_ms), (0, -13), textcoords="offset points",
                ha="center", fontsize=8,
            )  # fmt: skip
        axes.set_ylim(0, 1.2 * alone[len(ROWS) // 2])
        axes.set_xscale("log", base=2)
        axes.set_xticks(ROWS, [str(count) for count in ROWS])
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("requests")
    panels[0].set_ylabel("milliseconds for a token of each")
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    panels[-1].set_title(cpu_name(), loc="right", fontsize=8)
    save(figure, folder / "rows.png")


PICTURES: dict[str, Callable[[Path], None]] = {
    "rows": rows,
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
