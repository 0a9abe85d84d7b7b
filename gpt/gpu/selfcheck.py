"""Compares the Triton kernel with plain torch on this machine's GPU.

The kernel has run on few GPUs, so the first start on each runs the comparison, and the result is
kept until something changes on which it depends. The comparison runs in a separate process
(`python -m gpt.gpu.selfcheck`), since after an invalid read the device is unusable in its process.
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
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpt.cache import KVShape
from kernels import cache_folder
from kernels.paged import attend_rectangle

log = logging.getLogger(__name__)

COMPARE_S = 10.0  # after which no further case is begun
HANGS_S = 60.0
# relative to the largest value, or to 1: rounding of weights and of results
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
FOLDER = Path(__file__).resolve().parents[2]

# q, keys, values, rows, tables, tiles, singles, longest -> out; kernels.paged_triton.attend
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape for which the kernel is compiled."""

    heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: str

    @classmethod
    def of(cls, heads: int, shape: KVShape) -> Heads:
        dtype = str(shape.dtype).removeprefix("torch.")
        return cls(heads, shape.kv_heads, shape.head_dim, shape.block_tokens, dtype)


def why_not(device: torch.device, heads: Heads) -> str | None:
    """Why the kernel cannot be used on a device; None if it can."""
    identity = _identity(device, heads)
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    try:
        folder = cache_folder()
    except RuntimeError:  # the user has no home
        folder = Path(tempfile.gettempdir())
    kept = folder / f"paged-{digest}.json"
    try:
        found: str | None = json.loads(kept.read_text())["reason"]
    except (OSError, ValueError, KeyError):
        log.warning("comparing the attention kernel with plain torch on %s (once)", device)
        found = _compared_apart(device, heads)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps({"of": identity, "reason": found}) + "\n")
        except OSError as error:
            log.warning("the result of the comparison cannot be kept: %s", error)
    if found is not None:
        log.warning(
            "the attention kernel is not used, but torch's slower operators: %s (kept in %s)",
            found,
            kept,
        )
    return found


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
    source = (FOLDER / "kernels" / "paged_triton.py").read_text()
    interpreted = os.environ.get("TRITON_INTERPRET", "")
    versions = [torch.__version__, str(torch.version.cuda), triton, interpreted]
    return [name, *versions, repr(heads), hashlib.sha256(source.encode()).hexdigest()]


def _compared_apart(device: torch.device, heads: Heads) -> str | None:
    command = [sys.executable, "-m", "gpt.gpu.selfcheck", str(device)]
    command += [str(heads.heads), str(heads.kv_heads), str(heads.head_dim)]
    command += [str(heads.block_tokens), heads.dtype]
    try:
        done = subprocess.run(
            command, cwd=FOLDER, capture_output=True, text=True, timeout=HANGS_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the comparison did not end within {HANGS_S:.0f} s"
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return last[0]
    reason: str | None = json.loads(done.stdout.splitlines()[-1])
    return reason


# rows of each case: tokens before, new tokens
CASES = (
    [(0, 1), (15, 1), (16, 1), (99, 1), (40, 1)],
    [(0, 5), (99, 1), (63, 1), (20, 37), (0, 1), (0, 70)],
    [(1000, 1), (255, 1), (256, 1), (700, 33)],
    [(300, 200)],
)


def differs(attend: Attend, tile: int, heads: Heads, device: torch.device) -> str | None:
    """Describes where `attend` differs from plain torch in float64. `tile`: the kernel's queries
    per tile."""
    deadline_s = time.monotonic() + COMPARE_S
    dtype: torch.dtype = getattr(torch, heads.dtype)
    for number, rows in enumerate(CASES):
        torch.manual_seed(number)
        size = heads.block_tokens
        blocks = max(-(-sum(row) // size) for row in rows)
        pool = (len(rows) * blocks, size, heads.kv_heads, heads.head_dim)
        keys, values = torch.randn(2, *pool).to(device, dtype)
        tables = torch.randperm(pool[0]).int().view(len(rows), blocks)
        q = torch.randn(sum(count for _, count in rows), heads.heads, heads.head_dim)
        q = q.to(device, dtype)
        of_row, first = [], 0
        for start, count in rows:
            of_row.append((first, count, start + count))
            first += count
        piece = tile // (heads.heads // heads.kv_heads)
        tiles = [(r, 0) for r, (_, count) in enumerate(rows) if count == 1]
        singles = len(tiles)
        longest = max((of_row[r][2] for r, _ in tiles), default=0)
        tiles += [(r, at) for r, (_, n) in enumerate(rows) if n > 1 for at in range(0, n, piece)]
        layout, pieces = torch.tensor(of_row).int(), torch.tensor(tiles).int()
        found = attend(
            q, keys, values, layout.to(device), tables.to(device), pieces.to(device),
            singles, longest,
        )  # fmt: skip
        for r, (first, count, length) in enumerate(of_row):
            mine = slice(first, first + count)
            expected = attend_rectangle(
                q[None, mine].double(),
                keys.double(),
                values.double(),
                tables[r : r + 1].to(device),
                torch.arange(length - count, length, device=device)[None],
            )[0]
            error = float((found[mine] - expected).abs().max())
            limit = TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))
            if not error <= limit:
                return (
                    f"{count} new tokens over {length - count} others differ by {error:.2g}, "
                    f"allowed: {limit:.2g}"
                )
        if time.monotonic() > deadline_s:
            break
    return None


def main() -> None:
    from kernels.paged_triton import attend, queries_per_tile

    name, heads, kv_heads, head_dim, block_tokens, dtype = sys.argv[1:]
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which Triton launches
    built = Heads(int(heads), int(kv_heads), int(head_dim), int(block_tokens), dtype)
    tile = queries_per_tile(getattr(torch, dtype), built.head_dim)
    print(json.dumps(differs(attend, tile, built, device)))


if __name__ == "__main__":
    main()
