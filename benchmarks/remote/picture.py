"""Iterations as the server and its model server record them: the picture of docs/architecture.md.

    python -m benchmarks.remote.picture      # docs/img/remote.png, half a minute

The model runs in a process of its own, behind a Unix socket. Both processes record every iteration;
the difference between them is the round trip.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import ROOT, server
from benchmarks.pictures.page import command, save, without_frame
from client import client
from watch.runs import read_lines

LIMIT = 16
SHOWN_S = 0.06  # of the run
LOAD = (
    "--arrivals", "poisson", "--rate", "8", "--numsamples", "80",
    "--output-tokens", "normal:50,25,1,100",
)  # fmt: skip
COLOURS = {"decode": "#4c78a8", "prefill": "#f58518"}


@dataclass(frozen=True, slots=True)
class Iteration:
    start_s: float
    duration_s: float
    prefill: bool

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


def iterations(recorded: Path, tokens_of_row: int) -> list[Iteration]:
    """On the wall clock. A row with more than one token computes a part of a prompt."""
    head, lines = read_lines(recorded)
    offset_s = head["unix_s"] - head["clock_s"]
    return [
        Iteration(
            line["start_s"] + offset_s,
            line["duration_s"],
            any(row[tokens_of_row] > 1 for row in line["rows"]),
        )
        for line in lines
        if line["type"] == "iteration"
    ]


@contextlib.contextmanager
def model_server(address: str, record: Path) -> Iterator[None]:
    command = [
        str(ROOT / "server.sh"), "model-server", "--model", "embedded", "--dtype", "float32",
        "--max-batch-size", str(LIMIT), "--listen", address, "--record", str(record),
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "EB_PYTHON": sys.executable}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def measure() -> list[tuple[Iteration, Iteration]]:
    """Each iteration as the server recorded it, and as the model server did."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address, ours, theirs = f"unix:{folder}/model", folder / "ours", folder / "theirs"
        options = ("--remote-model", address, "--lookahead", "0", "--record", str(ours))
        with (
            model_server(address, theirs),
            server("embedded", "float32", LIMIT, *options) as url,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            if client.main([*LOAD, "--target", url, "--out", str(folder / "run")]):
                raise SystemExit("the client failed")
        return paired(iterations(ours, tokens_of_row=2), iterations(theirs, tokens_of_row=1))


def paired(
    of_server: Sequence[Iteration], of_model: Sequence[Iteration]
) -> list[tuple[Iteration, Iteration]]:
    """One iteration is in flight at a time. Those of the warm-up are the model server's alone."""
    ordered = iter(of_model)
    return [
        (outer, next(inner for inner in ordered if inner.start_s >= outer.start_s))
        for outer in of_server
    ]


def draw(pairs: Sequence[tuple[Iteration, Iteration]], path: Path) -> None:
    figure, (line, outside) = plt.subplots(
        2, 1, figsize=(9, 5), height_ratios=(2, 3), layout="constrained"
    )
    first_s = next(
        outer.start_s for outer, _ in pairs[len(pairs) // 2 :] if outer.prefill
    ) - SHOWN_S / 4  # fmt: skip
    for pair in pairs:
        for lane, each in enumerate(pair):
            if first_s < each.end_s and each.start_s < first_s + SHOWN_S:
                line.barh(
                    lane, 1000 * each.duration_s, left=1000 * (each.start_s - first_s),
                    color=COLOURS["prefill" if each.prefill else "decode"], height=0.6,
                )  # fmt: skip
    line.set_yticks([0, 1], ["server", "model server"])
    line.invert_yaxis()
    line.set_xlim(0, 1000 * SHOWN_S)
    line.set_xlabel("milliseconds")
    line.legend(
        handles=[
            Patch(color=COLOURS["decode"], label="iteration of decodes"),
            Patch(color=COLOURS["prefill"], label="with a prefill"),
        ],
        loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=9,
    )  # fmt: skip
    outside_ms = [1000 * (outer.duration_s - inner.duration_s) for outer, inner in pairs]
    whole_ms = 1000 * median(outer.duration_s for outer, _ in pairs)
    outside.hist(outside_ms, bins=60, range=(0, 3 * median(outside_ms)), color="#4c78a8")
    outside.set_xlim(left=0)
    outside.axvline(median(outside_ms), color="black", linewidth=1)
    outside.set_title(
        f"outside the model server: {median(outside_ms):.2f} ms of the {whole_ms:.2f} ms of an "
        "iteration (medians)",
        loc="left", fontsize=10,
    )  # fmt: skip
    outside.set_ylabel("iterations")
    outside.set_xlabel(f"milliseconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    for axis in (line, outside):
        without_frame(axis, "x")
        axis.set_axisbelow(True)
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "remote.png"))


if __name__ == "__main__":
    main()
