"""The limits of this machine: its reading bandwidth, its rate of operations, and the least time
that a run's iterations could take.

    python -m benchmarks.limits

An iteration reads all weights once and every request's keys and values, and computes the products
of its tokens; what follows the last attention is needed for the tokens to draw only. An iteration
takes at least the larger of bytes over bandwidth and operations over rate. Norms, sampling,
activations and the surrounding program are free in this bound, so no engine reaches it ("roofline":
Williams et al., CACM 52(4), 2009).

The rates come from loops that do nothing else (benchmarks/rates.cpp): the fastest instruction for a
dtype over registers, and reading. None is a kernel of this project, so a better kernel raises the
share of the limit and not the limit.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch

from benchmarks.harness.report import options, save
from kernels import linear_kernel, load_library
from model import DTYPES
from models.networks import Config
from models.weights.source import WeightSource, is_linear, shapes_of

READ_BYTES = 2**29
TIMES = 200_000  # of a loop's round: milliseconds
REPEATS = 7
# instructions that can compute a dtype's products: bfloat16 may be widened to float32
RATES = {
    "float32": ("rate_f32",),
    "bfloat16": ("rate_amx_bf16", "rate_dot_bf16", "rate_f32"),
    "int8": ("rate_amx_int8", "rate_dot_int8", "rate_f32"),
}
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
# pieces of a block that its attention needs
BEFORE_ATTENTION = ("ln_1", "q", "k", "v", "q_norm", "k_norm")
COMPUTES_STORED = "int8"  # the dtype whose instructions multiply a file's quantised weights
Bits = Mapping[str, float]  # of a value of each piece (models/weights/source.py)


@dataclass(frozen=True, slots=True)
class Bounds:
    read_bytes_per_s: float
    operations_per_s: dict[str, float]  # by dtype

    def or_better(self, other: Bounds) -> Bounds:
        """The better of two measurements, since other work on the machine only lowers them."""
        rates = {d: max(r, other.operations_per_s[d]) for d, r in self.operations_per_s.items()}
        return Bounds(max(self.read_bytes_per_s, other.read_bytes_per_s), rates)


@dataclass(frozen=True, slots=True)
class Pass:
    """The shape of one iteration."""

    tokens: int  # computed
    drawn: int  # rows that draw a token
    cached: int  # keys that are read, summed over the rows
    pairs: int  # of a new token and a key to which it attends


def after_attention(piece: str, config: Config) -> bool:
    """Whether a block's piece is in the last block and after its attention: it is needed for the
    tokens to draw only."""
    block, own = piece.split(".")[1:3]
    return int(block) == config.n_layer - 1 and own not in BEFORE_ATTENTION


def used(done: Pass, config: Config) -> Iterator[tuple[str, int, int]]:
    """The pieces that a pass reads, the weights of each, and the rows that it is applied to."""
    for piece, shape in shapes_of(config).items():
        head = piece == ("wte.weight" if config.tied else "head.weight")
        if head or piece.startswith("blocks."):
            last = head or after_attention(piece, config)
            yield piece, math.prod(shape), done.drawn if last else done.tokens


def bytes_of(done: Pass, config: Config, dtype: str, bits: Bits | None = None) -> float:
    """To read. `bits`: of the weights, where they are not all of `dtype`."""
    weights = sum(
        count * (WEIGHT_BYTES[dtype] if bits is None else bits[piece] / 8)
        for piece, count, rows in used(done, config)
        if rows
    )
    a_key = DTYPES[dtype].itemsize * config.kv_heads * config.head_dim
    return weights + 2 * whole_layers(config) * a_key * done.cached


def operations_of(done: Pass, config: Config) -> int:
    products = sum(
        2 * count * rows
        for piece, count, rows in used(done, config)
        if is_linear(piece) or not piece.startswith("blocks.")
    )
    return products + 4 * config.n_head * config.head_dim * whole_layers(config) * done.pairs


def stored_bits(source: WeightSource) -> Bits:
    """Of the weights as they lie in a GGUF file, with the scales of their blocks."""
    import gguf  # takes a while

    def bits(piece: str) -> float:
        values, size = gguf.GGML_QUANT_SIZES[
            gguf.GGMLQuantizationType[source.storage(piece).upper()]
        ]
        return 8 * size / values

    return {piece: bits(piece) for piece in shapes_of(source.config)}


def whole_layers(config: Config) -> int:
    """Layers whose attention is counted. Those with a window read and compute less than the whole
    context, so they count as free."""
    return config.windows.count(None)


def least_seconds(
    passes: Sequence[Pass], config: Config, dtype: str, limits: Bounds, bits: Bits | None = None
) -> float:
    return sum(
        max(
            bytes_of(done, config, dtype, bits) / limits.read_bytes_per_s,
            operations_of(done, config) / limits.operations_per_s[dtype],
        )
        for done in passes
    )


def measure(dtypes: Sequence[str]) -> Bounds:
    """With all cores, the best of several. Raises SystemExit without a compiler."""
    loops = _loops()
    if not loops:
        raise SystemExit("the limits are measured by compiled loops: install a C++ compiler")
    block = torch.ones(READ_BYTES, dtype=torch.int8)
    read_s = _best_seconds(lambda: loops["read_memory"](block.data_ptr(), READ_BYTES))
    rates = {
        dtype: max(_rate(loops[name]) for name in RATES[dtype] if name in loops) for dtype in dtypes
    }
    return Bounds(READ_BYTES / read_s, rates)


def _loops() -> dict[str, Callable[..., int]]:
    """The loops of rates.cpp by name, as far as the processor has the instructions."""
    library = load_library(Path(__file__).with_name("rates.cpp"))
    tiles = linear_kernel("linear_amx_bf16") is not None  # which requested permission for AMX
    found: dict[str, Callable[..., int]] = {}
    for name in ("read_memory", *chain(*RATES.values())):
        function = getattr(library, name, None)
        if function is not None and (tiles or "amx" not in name):
            pointer = [ctypes.c_void_p] * (name == "read_memory")
            function.restype, function.argtypes = ctypes.c_int64, [*pointer, ctypes.c_int64]
            found[name] = function
    return found


def _rate(function: Callable[..., int]) -> float:
    """Operations per second of one of the loops."""
    return function(TIMES) / _best_seconds(lambda: function(TIMES))


def _best_seconds(work: Callable[[], object]) -> float:
    work()
    best = float("inf")
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start_s)
    return best


def describe(limits: Bounds) -> str:
    rates = ", ".join(f"{r / 1e9:.0f} GFLOP/s in {d}" for d, r in limits.operations_per_s.items())
    return f"reads {limits.read_bytes_per_s / 1e9:.1f} GB/s, computes {rates}"


def main() -> None:
    args = options(__doc__, rounds=None).parse_args()
    limits = measure(list(RATES))
    save(asdict(limits), describe(limits), args.out, "limits")


if __name__ == "__main__":
    main()
