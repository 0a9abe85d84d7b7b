"""The smallest kernel of Triton's, which shows whether the compiler and the driver work."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _add_one(numbers: Any, count: Any, size: tl.constexpr) -> None:
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(numbers + at, tl.load(numbers + at, mask=at < count) + 1, mask=at < count)


def add_one(device: torch.device) -> bool:
    """Whether a kernel adds one to each number."""
    numbers = torch.arange(1000, device=device)
    _add_one[(triton.cdiv(len(numbers), 256),)](numbers, len(numbers), 256)
    return numbers.tolist() == list(range(1, 1001))
