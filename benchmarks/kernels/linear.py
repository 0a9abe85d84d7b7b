"""Linear layers alone, size by size: every variant that this machine can run (runtime/linear/).

    python -m benchmarks.kernels.linear
    python -m benchmarks.kernels.linear --sizes 768x3072 --rows 1 8 64 --precisions int8 q4_1

Each runs through more matrices than a cache can hold, as a model's layers do. The variants take
turns, and ratios are taken within a round: the better of oneDNN's and torch's time over that of
this project's fastest variant."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import nn

from benchmarks.harness.report import options, save, table
from benchmarks.harness.turns import Ratio, ratio_of
from benchmarks.limits import WEIGHT_BYTES
from client.experiment import Experiment
from models.weights.source import STORED_BITS
from runtime.linear.blocks import KINDS
from runtime.linear.choice import layer_of
from runtime.linear.layers import Precision, variants

SIZES = [(1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)]  # a block of gpt2-medium
ROWS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
ALL = (*PRECISIONS, *KINDS)
KEPT_BYTES = 160 * 2**20
ROUNDS = 7
OTHERS = ("oneDNN", "torch")


@dataclass(frozen=True, slots=True)
class LinearPoint:
    precision: Precision
    inputs: int
    outputs: int
    rows: int
    us: dict[str, float]  # by variant, for one matrix, the median of the rounds
    gain: Ratio | None  # the others' best time over our best; None if one is missing


def sides_of(precision: Precision, inputs: int, outputs: int) -> dict[str, list[nn.Module]]:
    """Layers of every variant, to be used one after the other."""
    count = max(2, int(KEPT_BYTES // (inputs * outputs * _bytes_of(precision))))
    matrices = [layer_of(precision, inputs, outputs) for _ in range(count)]
    offered = variants(precision)
    if precision in KINDS and len(offered) > 1:
        del offered[-1]  # torch's own, which unpacks all weights in each call
    return {variant.name: [variant.make(matrix) for matrix in matrices] for variant in offered}


def turn(layers: Sequence[nn.Module], x: torch.Tensor) -> float:
    """Seconds of a layer."""
    start_s = time.perf_counter()
    for layer in layers:
        layer(x)
    return (time.perf_counter() - start_s) / len(layers)


@torch.inference_mode()
def measure(
    precision: Precision, inputs: int, outputs: int, rows: Sequence[int], rounds: int
) -> Iterator[LinearPoint]:
    layers = sides_of(precision, inputs, outputs)
    for count in rows:
        x = torch.randn(count, inputs)
        x = x if precision == "float32" else x.to(torch.bfloat16)
        sides = {name: partial(turn, made) for name, made in layers.items()}
        experiment = Experiment(sides, {"s": float}, "torch", lambda _, x=x: x)  # type: ignore[misc]
        experiment.run(1)  # makes what the variants keep
        found = experiment.run(rounds)
        us = {name: round(median(found.figures(name)) * 1e6, 1) for name in layers}
        ours, others = (
            min((n for n in us if (n in OTHERS) is other), key=us.__getitem__, default=None)
            for other in (False, True)
        )
        gain = ratio_of(found, others, ours) if ours and others else None
        yield LinearPoint(precision, inputs, outputs, count, us, gain)


def _bytes_of(precision: Precision) -> float:
    """Of a weight."""
    return STORED_BITS[precision] / 8 if precision in KINDS else WEIGHT_BYTES[precision]


def card(points: Sequence[LinearPoint]) -> str:
    rows = [
        (
            point.precision, f"{point.inputs} x {point.outputs}", point.rows,
            ", ".join(f"{name} {us:.0f}" for name, us in point.us.items()), point.gain or "-",
        )
        for point in points
    ]  # fmt: skip
    columns = "weights | inputs x outputs | rows | us | others / ours (95 %)"
    return table(columns, rows)


def _size(text: str) -> tuple[int, int]:
    inputs, outputs = map(int, text.split("x"))  # argparse turns a ValueError into its message
    return inputs, outputs


def main() -> None:
    parser = options(__doc__, rounds=ROUNDS)
    parser.add_argument("--sizes", nargs="+", type=_size, default=SIZES, metavar="INPUTSxOUTPUTS")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=ALL)
    args = parser.parse_args()
    points = [
        point
        for precision, (inputs, outputs) in product(args.precisions, args.sizes)
        for point in measure(precision, inputs, outputs, args.rows, args.rounds)
    ]
    save({"points": [asdict(point) for point in points]}, card(points), args.out, "linear")


if __name__ == "__main__":
    main()
