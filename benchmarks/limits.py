"""What this machine could do at most: its reading bandwidth, its rate of matrix products, and the
least time that a run's iterations would take with them.

    python -m benchmarks.limits

An iteration reads all weights once and every request's keys and values, and computes the products
of its tokens. It cannot be over before the slower of the two is: the larger of bytes over
bandwidth and operations over rate. Norms, sampling, activations and the program around them are
free in this bound, so no engine reaches it ("roofline": Williams et al., CACM 52(4), 2009).
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from benchmarks.common import save
from gpt.linear import PackedLinear, PanelLinear, runs_in_panels
from gpt.network import GPTConfig
from model import DTYPES

READ_BYTES = 2**30
ROWS = (64, 128, 256, 512)
FEATURES = 1024, 4096  # of the products measured, gpt2-medium's largest
MATRICES = 8  # different ones in turn, so that none stays in a cache
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Limits:
    read_bytes_per_s: float
    operations_per_s: dict[str, float]  # by dtype

    def or_better(self, other: Limits) -> Limits:
        """Of two measurements: other work on the machine only ever lowers one."""
        rates = {d: max(r, other.operations_per_s[d]) for d, r in self.operations_per_s.items()}
        return Limits(max(self.read_bytes_per_s, other.read_bytes_per_s), rates)


@dataclass(frozen=True, slots=True)
class Pass:
    """The shape of one iteration."""

    tokens: int  # computed
    drawn: int  # rows whose next token was wanted
    cached: int  # keys that are read, summed over the rows
    pairs: int  # of a new token and a key that it sees


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
    """Parameters that a token's way through the blocks reads: matrices, biases, norms."""
    c = config.n_embd
    return config.n_layer * (12 * c * c + 13 * c)


def bytes_of(done: Pass, config: GPTConfig, element_bytes: int) -> int:
    head = config.vocab_size * config.n_embd if done.drawn else 0
    keys_and_values = 2 * config.n_layer * config.n_embd * done.cached
    return element_bytes * (weights_of(config) + head + keys_and_values)


def operations_of(done: Pass, config: GPTConfig) -> int:
    c = config.n_embd
    linear = 2 * 12 * c * c * config.n_layer * done.tokens
    head = 2 * c * config.vocab_size * done.drawn
    attention = 4 * c * config.n_layer * done.pairs
    return linear + head + attention


def least_seconds(passes: Sequence[Pass], config: GPTConfig, dtype: str, limits: Limits) -> float:
    element_bytes = DTYPES[dtype].itemsize
    return sum(
        max(
            bytes_of(done, config, element_bytes) / limits.read_bytes_per_s,
            operations_of(done, config) / limits.operations_per_s[dtype],
        )
        for done in passes
    )


@torch.inference_mode()
def measure(dtypes: Sequence[str]) -> Limits:
    """With all cores, the best of several."""
    block = torch.ones(READ_BYTES // 4)
    read = READ_BYTES / _best_seconds(block.sum)
    rates = {}
    for dtype in dtypes:
        read_by_products, rates[dtype] = _product_rates(DTYPES[dtype])
        read = max(read, read_by_products)
    return Limits(read, rates)


def _product_rates(dtype: torch.dtype) -> tuple[float, float]:
    """Of linear layers of each kind that the engine runs, in their best shape: bytes read per
    second for a lone row, operations per second for many."""
    few, many = FEATURES
    read, rate = 0.0, 0.0
    for size_in, size_out in ((few, many), (many, few)):
        plain = [nn.Linear(size_in, size_out).to(dtype) for _ in range(MATRICES)]
        kinds = [PackedLinear, PanelLinear] if runs_in_panels(plain[0]) else [PackedLinear]
        for kind in kinds:
            layers: list[nn.Module] = [kind(linear) for linear in plain]
            for rows in (1, *ROWS):
                x = torch.randn(rows, size_in).to(dtype)
                seconds = _best_seconds(functools.partial(_each, layers, x))
                rate = max(rate, 2 * rows * few * many * MATRICES / seconds)
                read = max(read, few * many * dtype.itemsize * MATRICES / seconds)
    return read, rate


def _each(layers: Sequence[nn.Module], x: Tensor) -> None:
    for layer in layers:
        layer(x)


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
    return f"reads {limits.read_bytes_per_s / 1e9:.1f} GB/s, matrix products {rates}"


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    limits = measure(list(DTYPES))
    save(asdict(limits), describe(limits), None, "limits")


if __name__ == "__main__":
    main()
