"""Decides whether this GPU uses the Triton kernels, by a comparison with plain torch.

The kernels have run on few GPUs, so the first start on each runs the comparison
(`runtime/gpu/comparison.py`). A result of the arithmetic is kept until something changes on which
it depends. Anything else, such as too little memory or a missing compiler, may pass, so the next
start compares again. The comparison runs in a process of its own (`python -m
runtime.gpu.selfcheck`): after an invalid read the device is unusable in the process that made it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kernels import cache_folder
from kernels.gpu.paged import queries_per_tile
from runtime.gpu.choice import resolve_device
from runtime.gpu.comparison import Heads, differs, record_graph, replay_differs
from runtime.gpu.twins import others_differ
from seams import LoadError

log = logging.getLogger(__name__)

HANGS_S = 180.0
FOLDER = Path(__file__).resolve().parents[2]
SOURCES = (  # on which a result depends
    *("kernels/gpu/attention.py", "kernels/gpu/layers.py"),
    *("kernels/gpu/sampling.py", "kernels/gpu/operators.py", "kernels/gpu/paged.py"),
    *("runtime/sampling/drawing.py", "runtime/sampling/sampler.py"),
    *("runtime/gpu/paged.py", "runtime/gpu/tuning.py", "runtime/gpu/twins.py"),
    "runtime/gpu/comparison.py",
)
TENSOR_CORES = (8, 0)  # compute capability from which Triton uses them for 16-bit numbers


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found; None: agrees. Without the kernel there are no graphs."""

    kernel: str | None = None  # why the kernel is not used
    graphs: str | None = None  # why CUDA graphs are not used
    lasting: bool = True  # the next start would find the same

    @property
    def unused(self) -> str | None:
        """What of the GPU is not used, and why."""
        if self.kernel is not None:
            without = "the attention kernel is not used, but torch's slower operators"
            return f"{without}, without CUDA graphs: {self.kernel}"
        return None if self.graphs is None else f"CUDA graphs are not used: {self.graphs}"


def check(device: torch.device, heads: Heads) -> Verdict:
    """`device`: with an index if it is a GPU. Call it before this process occupies the GPU, which
    may allow a single process, or be short of memory."""
    if device.type == "cuda":
        reason = unfit(torch.cuda.get_device_capability(device), heads)
        if reason is not None:
            return _told(Verdict(reason, reason), "")
    kept = _kept_at(identity := _identity(device, heads))
    try:
        found = Verdict(**json.loads(kept.read_text())["found"])
    except (OSError, ValueError, KeyError, TypeError):
        log.warning("comparing the attention kernel with plain torch on %s", device)
        found = _compared_apart(device, heads)
        if not found.lasting:
            return _told(found, "; the next start compares again")
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"of": identity, "found": asdict(found)}) + "\n")
        except OSError as error:
            log.warning("the result of the comparison cannot be kept: %s", error)
    return _told(found, f" (kept in {kept})")


def check_heads(model: str, heads: Heads) -> None:
    """A tile of a prompt holds a token at least, with all query heads that share a KV head. Raises
    LoadError."""
    dtype, group = getattr(torch, heads.dtype), heads.heads // heads.kv_heads
    most = queries_per_tile(dtype, heads.head_dim)
    if group > most:
        is_less = dtype.itemsize > 2 and group <= queries_per_tile(torch.bfloat16, heads.head_dim)
        raise LoadError(
            f"model '{model}' on a GPU: {group} query heads share a KV head, and the attention "
            f"kernel takes {most} at most ({heads.dtype}, {heads.head_dim} wide); allowed: "
            f"{'--dtype bfloat16 or float16, ' if is_less else ''}--device cpu"
        )


def unfit(capability: tuple[int, int], heads: Heads) -> str | None:
    """Why a GPU of this compute capability is too slow for the kernel; None: it is not."""
    if capability >= TENSOR_CORES or heads.dtype == "float32":
        return None
    return (
        f"below compute capability {TENSOR_CORES[0]}.{TENSOR_CORES[1]} it computes {heads.dtype} "
        f"without tensor cores, and this GPU has {capability[0]}.{capability[1]}"
    )


def _told(found: Verdict, where: str) -> Verdict:
    if found.unused is not None:
        log.warning("%s%s", found.unused, where)
    return found


def _kept_at(identity: list[str]) -> Path:
    try:
        folder = cache_folder()
    except RuntimeError:  # the user has no home
        folder = Path(tempfile.gettempdir())
    return folder / f"paged-{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}.json"


def _identity(device: torch.device, heads: Heads) -> list[str]:
    """Everything that the result depends on."""
    name = str(device)
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        name = f"{torch.cuda.get_device_name(device)} {capability}"
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    interpreted = os.environ.get("TRITON_INTERPRET", "")
    versions = [torch.__version__, str(torch.version.cuda), triton, interpreted]
    sources = [hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in SOURCES]
    return [name, *versions, repr(heads), *sources]


def _compared_apart(device: torch.device, heads: Heads) -> Verdict:
    command = [sys.executable, "-m", "runtime.gpu.selfcheck", str(device)]
    command += [str(heads.heads), str(heads.kv_heads), str(heads.head_dim)]
    command += [str(heads.block_tokens), heads.dtype]
    try:
        done = subprocess.run(
            command, cwd=FOLDER, capture_output=True, text=True, timeout=HANGS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(f"the comparison did not end within {HANGS_S:.0f} s")
    if done.returncode:
        return _failed((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return Verdict(**json.loads(done.stdout.splitlines()[-1]))


def _failed(reason: str) -> Verdict:
    return Verdict(reason, reason, lasting=False)


def compare(device: torch.device, heads: Heads) -> Verdict:
    """Compares in this process."""
    from runtime.gpu.paged import PagedAttention

    dtype: torch.dtype = getattr(torch, heads.dtype)
    tile_tokens = queries_per_tile(dtype, heads.head_dim) // (heads.heads // heads.kv_heads)
    asked = (PagedAttention, tile_tokens, heads, device)
    reason = differs(*asked) or others_differ(device, dtype)
    if reason is not None or device.type != "cuda":
        return Verdict(reason, reason)
    try:
        return Verdict(graphs=replay_differs(*asked, record_graph))
    except RuntimeError as error:  # the kernel itself has agreed
        return Verdict(graphs=str(error).partition("\n")[0], lasting=False)


@torch.inference_mode()
def main() -> None:
    name, heads, kv_heads, head_dim, block_tokens, dtype = sys.argv[1:]
    try:
        device = resolve_device(name).device
    except LoadError as error:
        sys.exit(str(error))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which Triton launches
    built = Heads(int(heads), int(kv_heads), int(head_dim), int(block_tokens), dtype)
    print(json.dumps(asdict(compare(device, built))))


if __name__ == "__main__":
    main()
