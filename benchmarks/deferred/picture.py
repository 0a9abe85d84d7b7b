"""A stored batch beside a bursty immediate load: the picture of docs/deferred.md.

    python -m benchmarks.deferred.picture      # docs/img/deferred.png, half a minute

One run of the client with ``--deferred-as-batch``, as the server recorded it with ``--record``.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame
from client import client
from watch.runs import Line, read_lines

LIMIT = 16
BIN_S = 0.25
LOAD = (
    "--arrivals", "plan:high", "--numsamples", "400", "--rate", "16", "--deferred-share", "0.6",
    "--deferred-as-batch", "--output-tokens", "normal:50,25,1,100",
)  # fmt: skip
COLOURS = {"immediate": "#4c78a8", "deferred": "#f2b56b"}


Rows = dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]


@dataclass(frozen=True, slots=True)
class Played:
    """Rows by class, and the requests that ended completely."""

    rows: Rows
    ended: Counter[str]


def measure() -> Played:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded = folder / "recorded"
        options = ("--record", str(recorded), "--data-dir", str(folder / "data"))
        with (
            server("embedded", "float32", LIMIT, *options) as url,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            if client.main([*LOAD, "--target", url, "--out", str(folder / "run")]):
                raise SystemExit("the client failed")
        _, lines = read_lines(recorded)
    class_of = {line["request"]: line["class"] for line in lines if line["type"] == "arrived"}
    ended = (line["request"] for line in lines if line.get("end") in ("length", "stop"))
    return Played(mean_rows(lines, class_of), Counter(class_of[request] for request in ended))


def mean_rows(lines: Sequence[Line], class_of: Mapping[int, str]) -> Rows:
    """The computed rows of each class, on average over each bin of time from the first iteration
    on. `lines` are those that `--record` wrote."""
    iterations = [line for line in lines if line["type"] == "iteration"]
    origin_s = iterations[0]["start_s"]
    starts = np.array([line["start_s"] - origin_s for line in iterations])
    durations = np.array([line["duration_s"] for line in iterations])
    at_s = np.column_stack([starts, starts + durations]).ravel()
    edges_s = BIN_S * np.arange(int(at_s[-1] / BIN_S) + 2)
    found: Rows = {}
    for kind in COLOURS:
        computed = [
            sum(tokens > 0 and class_of[request] == kind for request, _, tokens, _ in line["rows"])
            for line in iterations
        ]
        so_far = np.cumsum(np.column_stack([np.zeros_like(starts), computed * durations]).ravel())
        found[kind] = np.diff(np.interp(edges_s, at_s, so_far)) / BIN_S
    return found


def draw(played: Played, path: Path) -> None:
    figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
    at_s = BIN_S * np.arange(played.rows["immediate"].size)
    axis.stackplot(
        at_s, *played.rows.values(), labels=list(played.rows), colors=list(COLOURS.values()),
        step="post", lw=0,
    )  # fmt: skip
    axis.axhline(LIMIT, color="black", linewidth=1, linestyle=":", label="batch limit")
    axis.set_title(
        f"{played.ended['immediate']} immediate requests, and a batch of "
        f"{played.ended['deferred']} lines",
        loc="left", fontsize=10,
    )  # fmt: skip
    axis.set_ylabel("rows that are computed, mean")
    axis.set_xlabel(f"seconds; embedded model, {cpu_name()}")
    axis.margins(x=0)
    axis.set_ylim(0, LIMIT * 1.08)
    without_frame(axis)
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "deferred.png"))


if __name__ == "__main__":
    main()
