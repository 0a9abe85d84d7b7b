"""What a start prepares, so that no request waits for it. Triton interprets on a CPU."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig
from requested import Sampling
from seams import Opening, Step

CONTEXT = 300  # more than one program reads of a row


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the Triton kernels that were launched."""
    names: set[str] = set()
    launch = GridExecutor.__call__

    def noting(self: GridExecutor, *args: object, **kwargs: object) -> None:
        names.add(self.fn.__name__)
        launch(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", noting)
    return names


def test_the_warm_up_launches_every_kernel_of_a_long_row(launched: set[str]) -> None:
    """Triton compiles a kernel at its first launch, which takes seconds. The KV memory of a start
    may be too small for a long row."""
    network = GPT(GPTConfig(97, CONTEXT, n_layer=1, n_head=1, n_embd=16))
    network.eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=True)
    model.allocate(1)
    model.warm_up()
    before = set(launched)
    launched.clear()
    blocks = -(-CONTEXT // model.block_tokens)
    model.allocate(blocks)
    model.pool.keys.zero_()  # of the positions that are not computed here
    model.pool.values.zero_()
    model.open([Opening(0, [1] * CONTEXT, CONTEXT, Sampling())])
    model.start([Step(0, 0, 20, False, range(blocks))], ()).result()
    model.start([Step(0, CONTEXT - 1, 1, True, ())], ()).result()
    assert len(launched) >= 3
    assert launched <= before


def test_the_warm_up_computes_the_head_as_often_with_the_kernel_as_without() -> None:
    """The head of a shard is a collective, and the self-check may differ between two GPUs."""
    calls: dict[bool, int] = {}
    for kernel in (False, True):
        network = GPT(GPTConfig(97, CONTEXT, n_layer=1, n_head=1, n_embd=16))
        network.eval().requires_grad_(False)
        model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=kernel)
        model.allocate(1)
        called: list[object] = []
        network.head.register_forward_hook(lambda *_, called=called: called.append(1))
        model.warm_up()
        calls[kernel] = len(called)
    assert calls[False] == calls[True] > 0
