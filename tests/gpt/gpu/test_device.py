"""What a start prepares, so that no request waits for it. Triton interprets on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpt.network import GPT, GPTConfig
from kernels import paged_triton
from model import DynamicBatchingServerModel


class Launches:
    """A Triton kernel; notes that it was launched."""

    def __init__(self, kernel: Any, name: str, seen: list[str]) -> None:
        self.kernel, self.name, self.seen = kernel, name, seen

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        self.seen.append(self.name)
        launch: Callable[..., Any] = self.kernel[grid]
        return launch


@pytest.mark.parametrize(("context", "merges"), [(64, False), (300, True)])
def test_the_warm_up_launches_every_kernel_that_a_long_row_will(
    context: int, merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles a kernel at its first launch, which takes seconds. The KV memory may be too
    small for a long row at that time."""
    seen: list[str] = []
    for name in ("_store", "_attend", "_merge"):
        kernel = getattr(paged_triton, name)
        monkeypatch.setattr(paged_triton, name, Launches(kernel, name, seen))
    network = GPT(GPTConfig(97, context, n_layer=1, n_head=1, n_embd=16))
    network.eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=True)
    model.allocate(1)
    model.warm_up()
    assert set(seen) == {"_store", "_attend", *(["_merge"] if merges else [])}
