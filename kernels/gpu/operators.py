"""Kernels as operators of torch: profilers and CUDA graphs see them, and on fake tensors only the
shapes of their results are computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "effective_batching"
# a kernel is a Python function then, which runs on a CPU
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_library = torch.library.Library(NAMESPACE, "DEF")


def operator(
    name: str, signature: str, launch: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """`signature`: torch's, as in `(Tensor x, Tensor(a!) changed) -> Tensor`. `fake` returns what
    `launch` does, with nothing computed."""
    _library.define(name + signature)
    _library.impl(name, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    packet: Callable[..., Any] = getattr(torch.ops.effective_batching, name).default
    return packet
