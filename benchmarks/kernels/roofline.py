"""The linear kernels under the machine's roofline, as a picture.

    python -m benchmarks.kernels.roofline --picture docs/img/kernels-roofline.png

Operations per second of every variant over rows, and their limit (Williams et al., "Roofline", CACM
52(4), 2009): reading the weights, and the peak of the fastest instruction. Measured on one core in
processor time, so that other work on the machine changes little.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.harness.picture import plt
from benchmarks.harness.picture import save as save_picture
from benchmarks.harness.report import cpu_name, options, save, table
from benchmarks.kernels.linear import PRECISIONS, layers_of, timed
from benchmarks.limits import WEIGHT_BYTES, Limits, measure

FEATURES = 1024
KEPT_BYTES = 24 * 2**20  # of weights, in turn: more than the core's own caches hold
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512)
SHOWN = (1, 8, 16, 32, 64, 128, 512)
ROUNDS = 4
Curves = dict[tuple[str, str], list[float]]  # by weights and variant: GFLOP/s, by rows


def curves() -> Curves:
    found: Curves = {}
    for precision in PRECISIONS:
        layers = layers_of(precision, FEATURES, FEATURES, KEPT_BYTES)
        for rows in ROWS:
            ran = timed(layers, precision, (rows, FEATURES), ROUNDS, time.thread_time)
            for name in layers:
                speed = 2 * rows * FEATURES**2 / min(ran.figures(name)) / 1e9
                found.setdefault((precision, name), []).append(speed)
    return found


def draw(found: Curves, limits: Limits, path: Path) -> None:
    figure, axes = plt.subplots(1, len(PRECISIONS), figsize=(13, 4.4), sharey=True)
    for precision, axis in zip(PRECISIONS, axes, strict=True):
        peak = limits.operations_per_s[precision]
        roof = [
            min(peak, limits.read_bytes_per_s * 2 * rows / WEIGHT_BYTES[precision]) / 1e9
            for rows in ROWS
        ]
        axis.plot(ROWS, roof, color="black", linewidth=2, label="limit")
        for (weights, variant), speeds in found.items():
            if weights == precision:
                axis.plot(ROWS, speeds, marker=".", label=variant)
        axis.set(title=f"{precision} weights", xlabel="rows", xscale="log", yscale="log")
        axis.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
        axis.grid(alpha=0.3)
        axis.legend()
    axes[0].set_ylabel("billions of operations per second")
    figure.suptitle(f"{FEATURES} x {FEATURES}, one core of {cpu_name()}")
    figure.tight_layout()
    save_picture(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--picture", type=Path, help="where to draw it, a .png")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    limits, found = measure(PRECISIONS), curves()
    limits = limits.or_better(measure(PRECISIONS))
    if args.picture is not None:
        draw(found, limits, args.picture)
    columns = " | ".join(["weights", "variant", *(f"{rows} rows:" for rows in SHOWN)])
    card = table(
        columns,
        ((*of, *(f"{speeds[ROWS.index(n)]:.0f}" for n in SHOWN)) for of, speeds in found.items()),
    )
    told = [
        {"precision": precision, "variant": variant, "gflop_per_s": speeds}
        for (precision, variant), speeds in found.items()
    ]
    save({"limits": asdict(limits), "rows": ROWS, "curves": told}, card, args.out, "roofline")


if __name__ == "__main__":
    main()
