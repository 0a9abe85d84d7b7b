"""What the Triton kernels become on GPUs that are not here: registers, memory, instructions.

    python -m benchmarks.kernels.compiled --all

Triton compiles without a GPU. Each kernel is launched by the code that launches it when serving,
and compiled for each target as it would be there, with the same constants and the same knowledge of
what is divisible by 16. Spills: instructions that move registers to memory and back.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.report import table

# by compute capability: bytes of shared memory that a block of threads may have
SHARED_BYTES = {
    80: 163 << 10,
    86: 99 << 10,
    89: 99 << 10,
    90: 227 << 10,
    100: 227 << 10,
    120: 99 << 10,
}
TENSOR_CORES = ("HMMA", "HGMMA", "UTCHMMA", "UTCQMMA")


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A network's, as far as kernels are compiled for it."""

    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int


_GPT2, _LLAMA3 = KernelShape(16, 16, 64, 50257), KernelShape(32, 8, 128, 128256)
SHAPES = {
    "gpt2-medium bfloat16": _GPT2,
    "gpt2-medium float16": _GPT2,
    "gpt2-medium float32": _GPT2,
    "llama-3-8b bfloat16": _LLAMA3,
    "llama-3-8b float32": _LLAMA3,
    "qwen-2.5-0.5b bfloat16": KernelShape(14, 2, 64, 151936),
}


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    target: int
    shape: str
    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spills: int
    loads: dict[str, int]  # by width in bits: instructions that read memory
    tensor_cores: int  # their instructions
    dots: bool  # the kernel multiplies matrices in a precision that tensor cores have


class Architecture:
    """A driver of a GPU that is not here."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        capability: int = self._target.arch  # Triton keeps what it compiled by device
        return capability

    def get_current_stream(self, _: int) -> int:
        return 0


def compiled(capability: int, shape: str, *, tried: bool = False) -> Iterator[CompiledKernel]:
    """Of all kernels, for one target. `tried`: in all ways of launching them that are timed."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found: dict[str, Any] = {}
    kinds = ("by count", "by mass", "moments", "by typicality")
    run: Callable[..., Any] = JITFunction.run

    def collect(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        made = run(kernel, *args, grid=grid, warmup=True, **options)
        if made not in found.values():
            name = kernel.fn.__name__.lstrip("_")
            kind = f" {kinds[args[-5]]}" if name == "narrow" else ""
            found[name + kind + form] = made

    driver.set_active(Architecture(capability))
    JITFunction.run = collect
    try:
        for form, launch in launches(shape, tried):  # noqa: B007  # read by collect
            launch()
    finally:
        JITFunction.run = run
    for name, kernel in found.items():
        yield measured(capability, shape, name, kernel)


def launches(name: str, tried: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every kernel of the served path, in each form that has code of its own; those of draws with
    penalties, whose scores are float32, if ``tried``."""
    import torch

    from kernels.gpu import layers, sampling
    from kernels.gpu.attention import CANDIDATES, attend

    def some(*size: int, dtype: Any = torch.int32) -> Any:
        return torch.empty(size, dtype=dtype)

    shape, kind = SHAPES[name], name.split()[1]
    rows, channels = 8, shape.heads * shape.head_dim
    dtype = getattr(torch, kind)
    qkv = some(rows, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=dtype)
    q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    keys, values = some(2, 64, 16, shape.kv_heads, shape.head_dim, dtype=dtype)
    numbers = some(rows, dtype=torch.int64), some(rows, 5), some(256), some(12, 2)
    for launch in CANDIDATES if tried else CANDIDATES[:1]:
        form = f" ({launch.warps} warps, {launch.stages} stages)" if launch != CANDIDATES[0] else ""
        yield form, partial(attend, q, k, v, keys, values, *numbers, 4, True, None, *launch)

    x, gain = some(rows, channels, dtype=dtype), some(channels, dtype=dtype)
    yield "", lambda: layers.add_norm(x, x, gain, gain, 1e-5)
    yield "", lambda: layers.bias_gelu(x, gain)
    weight, turns = (
        some(channels, dtype=torch.float32),
        some(rows, shape.head_dim // 2, dtype=torch.float32),
    )
    head = weight[: shape.head_dim]
    yield " (sum)", lambda: layers.add_rms_norm(x, x, weight, 1e-5)
    yield "", lambda: layers.rms_norm(x, weight, 1e-5)
    yield " (SiLU)", lambda: layers.gated(x, False)
    yield " (GELU)", lambda: layers.gated(x, True)
    yield "", lambda: layers.rotate(q, k, turns, turns, None, None, 1e-5, 1.0)
    yield " (norms)", lambda: layers.rotate(q, k, turns, turns, head, head, 1e-5, 0.5)

    wide = some(rows, -(-shape.vocab_size // 64) * 64, dtype=dtype)
    logits, ids = wide[:, : shape.vocab_size], some(rows, 1, dtype=torch.int64)
    rates, whole = [some(rows, dtype=torch.float32)] * 3, some(rows, dtype=torch.int64)

    shaped = some(rows, shape.vocab_size, dtype=torch.float32)

    def draw(noise: bool, cuts: bool, scores: Any = logits) -> object:
        return sampling.draw(scores, whole, rates[0], whole, *rates, ids, whole, noise, *[cuts] * 4)

    yield " (greedy)", lambda: draw(False, False)
    yield "", lambda: draw(True, False)
    yield " (truncated)", lambda: draw(True, True)
    if tried:
        yield " (truncated, penalties)", lambda: draw(True, True, shaped)


def measured(capability: int, shape: str, name: str, kernel: Any) -> CompiledKernel:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()

        def told(tool: str, option: str) -> str:
            command = [str(tools / tool), option, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage, code = told("cuobjdump", "-res-usage"), told("nvdisasm", "-c")
    figures = dict(
        part.split(":") for part in usage.split() if part.startswith(("REG:", "STACK:", "LOCAL:"))
    )
    return CompiledKernel(
        capability,
        shape,
        name,
        int(figures["REG"]),
        kernel.metadata.shared,
        int(figures["STACK"]) + int(figures["LOCAL"]),
        sum(code.count(f" {spill}") for spill in ("LDL", "STL")),
        dict(Counter(map(_bits, re.findall(r" LDG\S*", code)))),
        sum(code.count(f" {instruction}") for instruction in TENSOR_CORES),
        "tt.dot" in kernel.asm["ttir"] and "float32" not in shape,
    )


def _bits(load: str) -> str:
    """Of an instruction such as LDG.E.128 or LDG.E.U16.CONSTANT."""
    width = re.search(r"\.[US]?(8|16|64|128)\b", load)
    return width[1] if width else "32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all targets and shapes, in minutes")
    parser.add_argument("--targets", type=int, nargs="+", choices=SHARED_BYTES, default=[80, 90])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES)[:1])
    parser.add_argument(
        "--tried",
        action="store_true",
        help="also the launches among which a GPU chooses, and draws with penalties",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each kernel")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        sys.exit("TRITON_INTERPRET=1 replaces the compiler; unset it")
    warnings.simplefilter("ignore")
    found = [
        one
        for shape in (SHAPES if args.all else args.shapes)
        for target in (SHARED_BYTES if args.all else args.targets)
        for one in compiled(target, shape, tried=args.all or args.tried)
    ]
    if args.json:
        print("\n".join(json.dumps(asdict(one)) for one in found))
    else:
        columns = "target | shape | kernel | registers | shared memory | stack | spills"
        print(table(columns, (list(asdict(one).values())[:7] for one in found)))


if __name__ == "__main__":
    main()
