"""The linear kernels under the machine's roofline, as a picture.

    python -m benchmarks.kernels.roofline --picture docs/img/kernels-roofline.png

Operations per second of every variant over rows, and their limit (Williams et al., "Roofline", CACM
52(4), 2009): reading the weights, and the peak of the fastest instruction. Measured on one core in
processor time, so that other work on the machine changes little.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.harness.picture import plt
from benchmarks.harness.picture import save as save_picture
from benchmarks.harness.report import cpu_name, options, save, table
from benchmarks.kernels.linear import PRECISIONS, layers_of, timed
from benchmarks.limits import WEIGHT_BYTES, Limits, measure
from runtime.linear.layers import Precision

FEATURES = 1024
KEPT_BYTES = 24 * 2**20  # of weights, in turn: more than the core's own caches hold
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512)
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Curve:
    precision: Precision
    variant: str
    gflop_per_s: list[float]  # by rows


def curves(precision: Precision) -> list[Curve]:
    layers = layers_of(precision, FEATURES, FEATURES, KEPT_BYTES)
    best: dict[str, list[float]] = {name: [] for name in layers}
    for rows in ROWS:
        found = timed(layers, precision, (rows, FEATURES), ROUNDS, time.thread_time)
        for name, speeds in best.items():
            speeds.append(2 * rows * FEATURES**2 / min(found.figures(name)) / 1e9)
    return [Curve(precision, name, speeds) for name, speeds in best.items()]


def draw(found: Sequence[Curve], limits: Limits, path: Path) -> None:
    figure, axes = plt.subplots(1, len(PRECISIONS), figsize=(13, 4.4), sharey=True)
    for precision, axis in zip(PRECISIONS, axes, strict=True):
        peak = limits.operations_per_s[precision]
        roof = [
            min(peak, limits.read_bytes_per_s * 2 * rows / WEIGHT_BYTES[precision]) / 1e9
            for rows in ROWS
        ]
        axis.plot(ROWS, roof, color="black", linewidth=2, label="limit")
        for curve in found:
            if curve.precision == precision:
                axis.plot(ROWS, curve.gflop_per_s, marker=".", label=curve.variant)
        axis.set(title=f"{precision} weights", xlabel="rows", xscale="log", yscale="log")
        axis.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
        axis.grid(alpha=0.3)
        axis.legend()
    axes[0].set_ylabel("billions of operations per second")
    figure.suptitle(f"{FEATURES} x {FEATURES}, one core of {cpu_name()}")
    figure.tight_layout()
    save_picture(figure, path)


def card(found: Sequence[Curve]) -> str:
    shown = [rows for rows in ROWS if rows in (1, 8, 16, 32, 64, 128, 512)]
    columns = ["weights", "variant", *(f"{rows} rows:" for rows in shown)]
    lines = []
    for curve in found:
        of_rows = dict(zip(ROWS, curve.gflop_per_s, strict=True))
        lines.append((curve.precision, curve.variant, *(f"{of_rows[n]:.0f}" for n in shown)))
    return table(" | ".join(columns), lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--picture", type=Path, help="where to draw it, a .png")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    limits = measure(PRECISIONS)
    found = [curve for precision in PRECISIONS for curve in curves(precision)]
    limits = limits.or_better(measure(PRECISIONS))
    if args.picture is not None:
        draw(found, limits, args.picture)
    report = {"limits": asdict(limits), "rows": ROWS, "curves": [asdict(c) for c in found]}
    save(report, card(found), args.out, "roofline")


if __name__ == "__main__":
    main()
