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
from runtime.linear.layers import KERNELS, Int8Linear, Kernel, KernelLinear, Precision

AVX512 = {"linear_f32", "linear_embedded_f32", "linear_widened_bf16"}
# a processor that compilers know, what /proc/cpuinfo must show to run its code, its functions
PROCESSORS = [
    ("haswell", {"avx2", "fma"}, {"linear_f32", "linear_widened_bf16"}),
    ("alderlake", {"avx_vnni"}, {"linear_f32", "linear_widened_bf16", "linear_int8"}),
    ("skylake-avx512", {"avx512bw"}, AVX512),
    ("cascadelake", {"avx512_vnni"}, {*AVX512, "linear_int8"}),
    (
        "cooperlake",
        {"avx512_bf16", "avx512_vnni"},
        {*AVX512, "linear_dot_bf16", "linear_int8"},
    ),
]
ALL = [(precision, kernel) for precision, of in KERNELS.items() for kernel in of]


def flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def built_for(processor: str) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    source = Path(kernels.__file__).with_name("linear.cpp")
    return ctypes.CDLL(
        str(kernels._build(source, compiler, [*kernels.FLAGS, f"-march={processor}"]))
    )


@pytest.mark.long
@pytest.mark.parametrize(("processor", "needs", "names"), PROCESSORS)
def test_code_for_another_processor_computes_the_same(
    processor: str, needs: set[str], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not needs <= flags():
        pytest.skip(f"this processor cannot run code for {processor}")
    library = built_for(processor)
    assert {k.function for _, k in ALL if hasattr(library, k.function)} == names

    def function(name: str) -> Callable[..., None]:
        found = getattr(library, name)
        found.restype = None
        found.argtypes = [
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3,
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
        ]  # fmt: skip
        made: Callable[..., None] = found
        return made

    monkeypatch.setattr(runtime.linear.layers, "linear_kernel", function)
    for streams in (False, True):
        if names:
            library.fetch_in_streams(streams)
        for precision, kernel in ALL:
            if kernel.function in names:
                check(precision, kernel)


def check(precision: Precision, kernel: Kernel) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    linear: nn.Linear = GeluLinear(301, 70, "tanh").to(dtype).requires_grad_(False)
    plain = Int8Linear(linear) if precision == "int8" else linear
    made = KernelLinear(plain, kernel)
    x = torch.randn(130, 301).to(dtype)
    tolerance = 1e-5 if precision == "float32" else 2e-2
    torch.testing.assert_close(made(x), plain(x), atol=tolerance, rtol=tolerance)
    for rows in (1, 2, 5, 15, 64):
        assert torch.equal(made(x[:rows]), made(x)[:rows])
