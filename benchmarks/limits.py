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
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.harness.report import options, save
from kernels import linear_kernel, load_library
from model import DTYPES
from models.gpt2 import GPTConfig

READ_BYTES = 2**29
TIMES = 200_000  # of a loop's round: milliseconds
REPEATS = 7
# instructions that can compute a dtype's products: bfloat16 may be widened to float32
RATES = {
    "float32": ("rate_f32",),
    "bfloat16": ("rate_amx_bf16", "rate_dot_bf16", "rate_f32"),
    "int8": ("rate_amx_int8", "rate_dot_int8", "rate_f32"),
}
ARGUMENTS = {
    "read_memory": [ctypes.c_void_p, ctypes.c_int64],
    "rate_f32": [ctypes.c_int64],
    "rate_dot_bf16": [ctypes.c_int64],
    "rate_amx_bf16": [ctypes.c_int64],
    "rate_dot_int8": [ctypes.c_int64],
    "rate_amx_int8": [ctypes.c_int64],
}
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Limits:
    read_bytes_per_s: float
    operations_per_s: dict[str, float]  # by dtype

    def or_better(self, other: Limits) -> Limits:
        """The better of two measurements, since other work on the machine only lowers them."""
        rates = {d: max(r, other.operations_per_s[d]) for d, r in self.operations_per_s.items()}
        return Limits(max(self.read_bytes_per_s, other.read_bytes_per_s), rates)


@dataclass(frozen=True, slots=True)
class Pass:
    """The shape of one iteration."""

    tokens: int  # computed
    drawn: int  # rows that draw a token
    cached: int  # keys that are read, summed over the rows
    pairs: int  # of a new token and a key to which it attends


def pass_of(rows: Iterable[tuple[int, int, bool]]) -> Pass:
    """Of rows (first position, new tokens, next token wanted)."""
    rows = list(rows)
    return Pass(
        tokens=sum(count for _, count, _ in rows),
        drawn=sum(wanted for _, _, wanted in rows),
        cached=sum(start + count for start, count, _ in rows),
        pairs=sum(count * start + count * (count + 1) // 2 for start, count, _ in rows),
    )


def weights_of(config: GPTConfig) -> int:
    """Parameters of the blocks that a token reads: matrices, biases, norms."""
    c = config.n_embd
    return config.n_layer * (12 * c * c + 13 * c)


def bytes_of(done: Pass, config: GPTConfig, dtype: str) -> int:
    c = config.n_embd
    # without a token to draw, neither the head nor the last block after its attention is computed
    unread = 0 if done.drawn else 9 * c * c + 8 * c
    head = config.vocab_size * c if done.drawn else 0
    keys_and_values = 2 * config.n_layer * c * done.cached
    weights = WEIGHT_BYTES[dtype] * (weights_of(config) - unread + head)
    return weights + DTYPES[dtype].itemsize * keys_and_values


def operations_of(done: Pass, config: GPTConfig) -> int:
    c = config.n_embd
    # of a block's 12, 9 follow its attention: the last block's are for the tokens to draw only
    matrices = 12 * config.n_layer * done.tokens - 9 * (done.tokens - done.drawn)
    linear = 2 * c * c * matrices
    head = 2 * c * config.vocab_size * done.drawn
    attention = 4 * c * config.n_layer * done.pairs
    return linear + head + attention


def least_seconds(passes: Sequence[Pass], config: GPTConfig, dtype: str, limits: Limits) -> float:
    return sum(
        max(
            bytes_of(done, config, dtype) / limits.read_bytes_per_s,
            operations_of(done, config) / limits.operations_per_s[dtype],
        )
        for done in passes
    )


def measure(dtypes: Sequence[str]) -> Limits:
    """With all cores, the best of several. Raises SystemExit without a compiler."""
    loops = _loops()
    if not loops:
        raise SystemExit("the limits are measured by compiled loops: install a C++ compiler")
    block = torch.ones(READ_BYTES, dtype=torch.int8)
    read_s = _best_seconds(lambda: loops["read_memory"](block.data_ptr(), READ_BYTES))
    rates = {
        dtype: max(_rate(loops[name]) for name in RATES[dtype] if name in loops) for dtype in dtypes
    }
    return Limits(READ_BYTES / read_s, rates)


def _loops() -> dict[str, Callable[..., int]]:
    """The loops of rates.cpp by name, as far as the processor has the instructions."""
    library = load_library(Path(__file__).with_name("rates.cpp"))
    tiles = linear_kernel("linear_amx_bf16") is not None  # which requested permission for AMX
    found: dict[str, Callable[..., int]] = {}
    for name, arguments in ARGUMENTS.items():
        function = getattr(library, name, None)
        if function is not None and (tiles or "amx" not in name):
            function.restype, function.argtypes = ctypes.c_int64, arguments
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


def describe(limits: Limits) -> str:
    rates = ", ".join(f"{r / 1e9:.0f} GFLOP/s in {d}" for d, r in limits.operations_per_s.items())
    return f"reads {limits.read_bytes_per_s / 1e9:.1f} GB/s, computes {rates}"


def main() -> None:
    args = options(__doc__, rounds=None).parse_args()
    limits = measure(["float32", "bfloat16"])
    save(asdict(limits), describe(limits), args.out, "limits")


if __name__ == "__main__":
    main()
