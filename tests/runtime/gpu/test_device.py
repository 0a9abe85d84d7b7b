"""What a start prepares, so that no request waits for it. Triton interprets on a CPU."""

from __future__ import annotations

import torch

from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig
from requested import Sampling
from seams import Opening, Step
from tests.kernels.launches import launched

CONTEXT = 300  # more than one program reads of a row


def test_the_warm_up_launches_every_kernel_of_a_long_row() -> None:
    """Triton compiles a kernel at its first launch, which takes seconds. The KV memory of a start
    may be too small for a long row."""
    network = GPT(GPTConfig(97, CONTEXT, n_layer=1, n_head=1, n_embd=16))
    network.eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=True)
    model.allocate(1)
    with launched() as before:
        model.warm_up()
    blocks = -(-CONTEXT // model.block_tokens)
    model.allocate(blocks)
    model.pool.keys.zero_()  # of the positions that are not computed here
    model.pool.values.zero_()
    model.open([Opening(0, [1] * CONTEXT, CONTEXT, Sampling())])
    with launched() as names:
        model.start([Step(0, 0, 20, False, range(blocks))], ()).result()
        model.start([Step(0, CONTEXT - 1, 1, True, ())], ()).result()
    assert len(set(names)) >= 3
    assert set(names) <= set(before)


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
