"""How the attention kernel for decodes is launched on this GPU: measured at first use, and kept.

Warps and stages change the last bits of results, so one choice serves all batches, and restarts
read it (kernels/choice.py). The self-check uses the same choice, and so compares what will run.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kernels.choice import kept_choices
from runtime.cache import KVShape
from runtime.gpu.comparison import Heads, LayerCase
from runtime.gpu.paged import PagedAttention

if TYPE_CHECKING:
    from kernels.gpu.attention import Launch

KEYS = 512  # of each row that is timed: two splits
POOL_BYTES = 2**26  # of keys and values of all rows, which most caches do not hold
ROUNDS, REPEATS = 5, 10

# seconds that a call takes on a device
Timer = Callable[[Callable[[], object], torch.device], float]


@functools.cache
def decode_launch(heads: int, shape: KVShape) -> Launch:
    """`heads`: of queries."""
    from kernels.gpu.attention import Launch  # Triton is part of torch's CUDA build only

    if shape.device.type != "cuda":
        return Launch()
    return chosen(heads, shape, seconds_on_gpu)


def chosen(heads: int, shape: KVShape, seconds: Timer) -> Launch:
    """The fastest of the candidates, now or at an earlier start."""
    import triton

    from kernels.gpu import attention as paged_triton
    from kernels.gpu.attention import CANDIDATES

    by_name = {f"{launch.warps} warps, {launch.stages} stages": launch for launch in CANDIDATES}
    of = Heads.of(heads, shape)
    key = f"{heads}:{of.kv_heads} x {of.head_dim} {of.dtype}, blocks of {of.block_tokens}"

    def identity() -> list[str]:
        on_gpu = shape.device.type == "cuda"
        name = torch.cuda.get_device_name(shape.device) if on_gpu else "cpu"
        source = hashlib.sha256(Path(paged_triton.__file__).read_bytes()).hexdigest()
        return [name, torch.__version__, triton.__version__, source]

    def measure(_: object) -> dict[str, str]:
        rows = max(1, POOL_BYTES // (KEYS * shape.token_bytes // shape.n_layer))
        # random, since a GPU computes zeros with less power, and so faster
        case = LayerCase([(KEYS - 1, 1)] * rows, of, 1, shape.device, 0)
        tried = {
            name: PagedAttention(case.packed, case.pool, launch) for name, launch in by_name.items()
        }
        timed = {
            name: seconds(partial(attend, 0, *case.split()), shape.device)
            for name, attend in tried.items()
        }
        return {key: min(timed, key=timed.__getitem__)}

    return by_name[kept_choices("decode", identity, [key], by_name, measure)[key]]


def seconds_on_gpu(run: Callable[[], object], device: torch.device) -> float:
    run()  # which compiles
    best_s = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize(device)
        start_s = time.perf_counter()
        for _ in range(REPEATS):
            run()
        torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s / REPEATS
