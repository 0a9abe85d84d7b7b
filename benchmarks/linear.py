"""Linear layers alone, size by size: our kernel beside oneDNN's with packed weights, and beside
torch's plain layer.

    python -m benchmarks.linear
    python -m benchmarks.linear --sizes 768x3072 --rows 1 8 64 --dtypes bfloat16

Each kind runs through as many different matrices as no cache can hold, as a model's layers do; the
kinds take turns, and the ratio is that within a round, over the rounds. Bytes are those of the
weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.alternate import Ratio, in_turns, ratio
from benchmarks.common import cpu_name, save
from gpt.linear import PackedLinear, PanelLinear, runs_in_panels
from model import DTYPES

SIZES = [(1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)]  # a block of gpt2-medium
ROWS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256]
KEPT_BYTES = 160 * 2**20
ROUNDS = 7
KINDS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "plain": lambda linear: linear,
    "oneDNN": PackedLinear,
    "ours": PanelLinear,
}


@dataclass(frozen=True, slots=True)
class Point:
    dtype: str
    inputs: int
    outputs: int
    rows: int
    us: dict[str, float]  # by kind, for one matrix, the median of the rounds
    gain: Ratio  # oneDNN's time over ours

    @property
    def read_gb_per_s(self) -> float:
        return self.inputs * self.outputs * DTYPES[self.dtype].itemsize / self.us["ours"] / 1e3

    @property
    def gflop_per_s(self) -> float:
        return 2 * self.rows * self.inputs * self.outputs / self.us["ours"] / 1e3


@torch.inference_mode()
def measure(dtype: str, inputs: int, outputs: int, rows: Sequence[int]) -> list[Point]:
    size = inputs * outputs * DTYPES[dtype].itemsize
    matrices = [
        nn.Linear(inputs, outputs).to(DTYPES[dtype]) for _ in range(max(2, KEPT_BYTES // size))
    ]
    if not runs_in_panels(matrices[0]):
        raise SystemExit(f"our kernel has no code for {dtype} on this machine ({cpu_name()})")
    layers = {kind: [make(matrix) for matrix in matrices] for kind, make in KINDS.items()}
    points = []
    for count in rows:
        x = torch.randn(count, inputs).to(DTYPES[dtype])
        sides = {kind: partial(_seconds, layers[kind], x) for kind in KINDS}
        in_turns(sides, 1)  # makes what the kinds keep
        rounds = in_turns(sides, ROUNDS)
        us = {k: round(median(s) / len(matrices) * 1e6, 1) for k, s in rounds.items()}
        gain = ratio(rounds["oneDNN"], rounds["ours"])
        points.append(Point(dtype, inputs, outputs, count, us, gain))
    return points


def _seconds(layers: Sequence[nn.Module], x: Tensor) -> float:
    start_s = time.perf_counter()
    for layer in layers:
        layer(x)
    return time.perf_counter() - start_s


def table(points: Sequence[Point]) -> str:
    lines = [
        "| dtype | inputs x outputs | rows | plain us | oneDNN us | ours us "
        "| oneDNN / ours (95 %) |"
        " ours reads | ours computes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        times = " | ".join(f"{point.us[kind]:.0f}" for kind in KINDS)
        lines.append(
            f"| {point.dtype} | {point.inputs} x {point.outputs} | {point.rows} | {times} "
            f"| {point.gain} | {point.read_gb_per_s:.1f} GB/s "
            f"| {point.gflop_per_s:.0f} GFLOP/s |"
        )
    return "\n".join(lines)


def _size(text: str) -> tuple[int, int]:
    inputs, outputs = map(int, text.split("x"))  # argparse turns a ValueError into its message
    return inputs, outputs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=_size, default=SIZES, metavar="INPUTSxOUTPUTS")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    args = parser.parse_args()
    points = []
    for dtype in args.dtypes:
        for inputs, outputs in args.sizes:
            points += measure(dtype, inputs, outputs, args.rows)
    save({"points": [asdict(point) for point in points]}, table(points), args.out, "linear")


if __name__ == "__main__":
    main()
