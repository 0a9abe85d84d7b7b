"""Translates torch's errors into the engine's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from seams import DeviceLostError, DeviceMemoryError

# how those word it that have no error type of their own, in lower case
SHORTAGES = (
    "can't allocate memory",  # torch's allocator for CPUs, on Linux
    "not enough memory",  # and elsewhere
    "out of memory",  # CUDA, Triton's launcher, NCCL
    "_status_alloc_failed",  # cuBLAS, cuDNN, cuSPARSE
    "allocation_failed",  # cuDNN 9
    "failed to cuda calloc",  # NCCL
)

Method = TypeVar("Method", bound=Callable[..., Any])


def with_our_errors(method: Method) -> Method:
    """Wraps a method of an object with a `device`: torch's errors about too little memory or a lost
    device become those of `seams`."""

    @functools.wraps(method)
    def translated(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except torch.OutOfMemoryError as error:
            shortage = str(error)
        except RuntimeError as error:
            if self.device.type == "cuda" and _is_lost(self.device):
                raise DeviceLostError(str(error).partition("\n")[0]) from error
            if not is_shortage(error):
                raise
            shortage = str(error)
        # not from the error: its traceback would keep the tensors of the failed iteration, while a
        # smaller one is tried
        raise DeviceMemoryError(shortage)

    return cast(Method, translated)


def is_shortage(error: RuntimeError) -> bool:
    """Whether memory was missing, on a CPU or a GPU, so that less work may succeed."""
    words = str(error).lower()
    return any(each in words for each in SHORTAGES)


def _is_lost(device: torch.device) -> bool:
    """Whether an error sticks, as after an assertion in a kernel: CUDA then reports it at every
    call until the process ends."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
