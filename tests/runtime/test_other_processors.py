"""The kernels as other processors get them, built for these and run on this one where it has their
instructions: linear layers, attention, and sampling."""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kernels
import runtime.linear.layers
from runtime.linear.blocks import KINDS
from runtime.linear.layers import KERNELS, KernelLinear
from tests.kernels import test_attention
from tests.runtime import test_sampling
from tests.runtime.linear.test_layers import check, dtype_of, plain

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="code for x86-64"),
]

FLOAT = {"linear_f32", "linear_widened_bf16"}
VNNI = {"linear_int8", *(f"linear_vnni_{kind}" for kind in KINDS)}
MADDUBS = {f"linear_maddubs_{kind}" for kind in KINDS}
# a processor that compilers know, what /proc/cpuinfo must show to run its code, its functions
PROCESSORS = [
    ("haswell", {"avx2", "fma"}, {*FLOAT, *MADDUBS}),
    ("alderlake", {"avx_vnni"}, {*FLOAT, *VNNI}),
    ("skylake-avx512", {"avx512bw"}, {*FLOAT, *MADDUBS}),
    ("cascadelake", {"avx512_vnni"}, {*FLOAT, *VNNI}),
    ("cooperlake", {"avx512_bf16", "avx512_vnni"}, {*FLOAT, "linear_dot_bf16", *VNNI}),
]
ALL = [(precision, kernel) for precision, of in KERNELS.items() for kernel in of]


@pytest.mark.parametrize(("processor", "needs", "names"), PROCESSORS)
def test_linear_layers(
    processor: str, needs: set[str], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    has = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    compiler = shutil.which("g++")
    if not needs <= has or compiler is None:
        pytest.skip(f"this machine cannot build or run code for {processor}")
    flags = [*kernels.FLAGS, f"-march={processor}"]
    sources = [kernels._source(f"linear/{name}") for name in ("linear", "blocks")]
    libraries = [ctypes.CDLL(str(kernels._build(source, compiler, flags))) for source in sources]

    def library_of(name: str) -> ctypes.CDLL | None:
        return next((library for library in libraries if hasattr(library, name)), None)

    def function(name: str) -> Callable[..., None]:
        found = getattr(library_of(name), name)
        found.restype = None
        found.argtypes = [
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 3,
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
        ]  # fmt: skip
        made: Callable[..., None] = found
        return made

    assert {kernel.function for _, kernel in ALL if library_of(kernel.function)} == names
    monkeypatch.setattr(runtime.linear.layers, "linear_kernel", function)
    for precision, kernel in ALL:
        if kernel.function in names:
            torch.manual_seed(0)
            linear = plain(precision, 301, 70, "tanh")
            made = KernelLinear(linear, kernel)
            x = torch.randn(130, linear.in_features).to(dtype_of(precision))
            check(linear, x, made(x), precision)
            for rows in (1, 2, 5, 15, 64):
                assert torch.equal(made(x[:rows]), made(x)[:rows])


@pytest.mark.parametrize("processor", ["haswell", "x86-64"])
def test_attention_and_sampling_without_avx_512(
    processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "FLAGS", [*kernels.FLAGS, f"-march={processor}"])
    attention = functools.cache(kernels.attention_kernels.__wrapped__)
    sampling = kernels.sampling_library.__wrapped__()
    if not attention(64) or sampling is None:
        pytest.skip("no C++ compiler on this machine")
    assert attention(64).keys() == {"attend_f32", "attend_bf16"}
    for module in ("runtime.attention", "tests.kernels.test_attention"):
        monkeypatch.setattr(f"{module}.attention_kernels", attention)
    monkeypatch.setattr("runtime.sampling.sampler.sampling_library", lambda: sampling)
    test_attention.test_kernels_for_cpus_and_their_twin_compute_rows_of_any_length()
    test_sampling.test_the_kernel_draws_what_its_twin_draws_and_only_what_is_allowed()
