"""Numbers to and from a device: one copy each way for an iteration, in pinned memory, so that
nothing waits for a copy before it needs it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.float32]

NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}
_TORCH = {np.dtype(theirs): ours for ours, theirs in NUMPY.items()}


def send(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """The same on the device, in one copy, which does not wait."""
    staged = stage(arrays, pinned=device.type == "cuda")
    # torch does not reuse pinned memory before the copy is done
    return views(staged.to(device, non_blocking=True), arrays)


def stage(arrays: Sequence[Array], *, pinned: bool) -> Tensor:
    """All numbers in one array of bytes."""
    staged = torch.empty(sum(map(padded_bytes, arrays)), dtype=torch.uint8, pin_memory=pinned)
    numbers, at = staged.numpy(), 0
    for array in arrays:
        numbers[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at += padded_bytes(array)
    return staged


def views(staged: Tensor, like: Sequence[Array]) -> list[Tensor]:
    """The parts of what `stage` has joined; nothing is copied."""
    found, at = [], 0
    for array in like:
        numbers = staged[at : at + array.nbytes].view(_TORCH[array.dtype])
        found.append(numbers.view(array.shape))
        at += padded_bytes(array)
    return found


def padded_bytes(array: Array) -> int:
    return -(-array.nbytes // 16) * 16  # Triton's loads are wider where addresses allow it
