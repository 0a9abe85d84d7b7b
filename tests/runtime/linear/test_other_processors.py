"""The kernels as other processors get them, run on this one where it has their instructions."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import kernels
import runtime.linear.layers
from models.gpt2 import GeluLinear
from models.weights.rounding import quantise_q4_0, quantise_q8_0
from runtime.linear.blocks import KINDS, BlockLinear
from runtime.linear.layers import (
    KERNELS,
    AnyLinear,
    Int8Linear,
    KernelFunction,
    KernelLinear,
    Precision,
)

FLOAT = {"linear_f32", "linear_widened_bf16"}
VNNI = {"linear_int8", *(f"linear_vnni_{kind}" for kind in KINDS)}
MADDUBS = {f"linear_maddubs_{kind}" for kind in KINDS}
# a processor that compilers know, what /proc/cpuinfo must show to run its code, its functions
PROCESSORS = [
    ("haswell", {"avx2", "fma"}, {*FLOAT, *MADDUBS}),
    ("alderlake", {"avx_vnni"}, {*FLOAT, *VNNI}),
    ("skylake-avx512", {"avx512bw"}, {*FLOAT, *MADDUBS}),
    ("cascadelake", {"avx512_vnni"}, {*FLOAT, *VNNI}),
    (
        "cooperlake",
        {"avx512_bf16", "avx512_vnni"},
        {*FLOAT, "linear_dot_bf16", *VNNI},
    ),
]
ALL = [(precision, kernel) for precision, of in KERNELS.items() for kernel in of]


def flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def built_for(processor: str) -> list[ctypes.CDLL]:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    flags = [*kernels.FLAGS, f"-march={processor}"]
    sources = [kernels._source(f"linear/{name}") for name in ("linear", "blocks")]
    return [ctypes.CDLL(str(kernels._build(source, compiler, flags))) for source in sources]


@pytest.mark.long
@pytest.mark.parametrize(("processor", "needs", "names"), PROCESSORS)
def test_code_for_another_processor_computes_the_same(
    processor: str, needs: set[str], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not needs <= flags():
        pytest.skip(f"this processor cannot run code for {processor}")
    libraries = built_for(processor)

    def library_of(name: str) -> ctypes.CDLL | None:
        return next((library for library in libraries if hasattr(library, name)), None)

    assert {kernel.function for _, kernel in ALL if library_of(kernel.function)} == names

    def function(name: str) -> Callable[..., None]:
        found = getattr(library_of(name), name)
        found.restype = None
        found.argtypes = [
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3,
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
        ]  # fmt: skip
        made: Callable[..., None] = found
        return made

    monkeypatch.setattr(runtime.linear.layers, "linear_kernel", function)
    for precision, kernel in ALL:
        if kernel.function in names:
            check(precision, kernel)


def check(precision: Precision, kernel: KernelFunction) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    plain = layer(precision, 288 if precision in KINDS else 301, dtype)
    made = KernelLinear(plain, kernel)
    x = torch.randn(130, plain.in_features).to(dtype)
    tolerance = 1e-5 if precision == "float32" else 2e-2
    torch.testing.assert_close(made(x), plain(x), atol=tolerance, rtol=tolerance)
    for rows in (1, 2, 5, 15, 64):
        assert torch.equal(made(x[:rows]), made(x)[:rows])


def layer(precision: Precision, inputs: int, dtype: torch.dtype) -> AnyLinear:
    if precision in KINDS:
        quantise = quantise_q8_0 if precision == "q8_0" else quantise_q4_0
        raw = quantise(torch.randn(70, inputs))
        if precision == "q4_1":  # the scales of q4_0, and zeros as minima
            blocks = raw.view(70, -1, 18)
            raw = torch.cat([blocks[:, :, :2], 0 * blocks[:, :, :2], blocks[:, :, 2:]], 2).flatten(
                1
            )
        return BlockLinear.of(precision, raw)
    linear: nn.Linear = GeluLinear(inputs, 70, "tanh").to(dtype).requires_grad_(False)
    return Int8Linear.of(linear) if precision == "int8" else linear
