"""The Triton kernels compile for GPUs that are not here, and fit into them. The interpreter, which
other tests use, replaces the compiler when the kernels are imported; hence another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from benchmarks.kernels.compiled import SHAPES, SHARED_BYTES, CompiledKernel

KERNELS = {
    "store", "attend", "decode", "merge", "add_norm", "bias_gelu", "rms_norm",
    "rms_norm (sum)", "gated (SiLU)", "gated (GELU)", "rotate", "rotate (norms)", "race (greedy)",
    "finish (greedy)", "race", "race (truncated)", "peak (truncated)",
    "narrow by count (truncated)", "narrow by mass (truncated)", "narrow moments (truncated)",
    "narrow by typicality (truncated)",
}  # fmt: skip
SCORES = ("race", "peak", "narrow")  # what their kernels' names begin with


def compiled(*options: str) -> list[CompiledKernel]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels.compiled", "--json", *options],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [CompiledKernel(**json.loads(line)) for line in done.stdout.splitlines()]


def check(found: Sequence[CompiledKernel]) -> None:
    for kernel in found:
        assert kernel.shared_bytes <= SHARED_BYTES[kernel.target], kernel
        assert kernel.stack_bytes == 0, kernel
        assert kernel.spills == 0, kernel
        assert (kernel.tensor_cores > 0) == kernel.dots, kernel
        if kernel.kernel.startswith(SCORES) and "penalties" not in kernel.kernel:
            assert kernel.loads["128"] > 0, kernel  # 16 bytes of scores at once
            assert not {"8", "16"} & kernel.loads.keys(), kernel  # and nothing narrower than 4
    assert {kernel.kernel for kernel in found} >= KERNELS
    for kernel in found:
        if "float32" not in kernel.shape:
            assert kernel.dots == kernel.kernel.startswith(("attend", "decode")), kernel


def test_the_kernels_fit_into_a_gpu() -> None:
    check(found := compiled("--targets", "90"))
    # five blocks of 128 threads to a multiprocessor of 65,536 registers need 102 or fewer
    assert all(kernel.registers <= 96 for kernel in found if kernel.kernel == "decode")


@pytest.mark.long
@pytest.mark.parametrize("target", SHARED_BYTES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernels_fit_into_any_gpu(target: int, shape: str) -> None:
    check(compiled("--targets", str(target), "--shapes", shape, "--tried"))
