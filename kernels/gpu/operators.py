"""Kernels as operators of torch: profilers and CUDA graphs see them, and on fake tensors only the
shapes of their results are computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

NAMESPACE = "effective_batching"
# a kernel is a Python function then, which runs on a CPU
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
Launch = Callable[..., Any]

_library = torch.library.Library(NAMESPACE, "DEF")


def operator(fake: Callable[..., Any], changes: Sequence[str] = ()) -> Callable[[Launch], Launch]:
    """Makes an operator of a function that launches kernels, with its name and its parameters.
    `fake` returns what it does, with nothing computed; `changes`: the tensors that it writes to."""

    def made(launch: Launch) -> Launch:
        name = launch.__name__
        _library.define(name + torch.library.infer_schema(launch, mutates_args=changes))
        _library.impl(name, launch, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
        packet: Launch = getattr(torch.ops.effective_batching, name).default
        return packet

    return made
