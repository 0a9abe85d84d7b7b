"""What a decode step launches. An operator of ours counts as the Triton kernels that it launches,
counted where they are launched; torch's count one each."""

from __future__ import annotations

import pytest
import torch

from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig
from requested import Sampling
from runtime.executor import Executor
from seams import Opening, Step
from tests.kernels.launches import launched
from tests.runtime.gpu.fake import Operators

PER_LAYER, MERGE = 8, 1


def launches(layers: int, past: int) -> int:
    """Of a step of two rows over `past` tokens."""
    network = GPT(GPTConfig(97, 512, layers, 1, 16)).eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=True)
    each = -(-(past + 2) // model.block_tokens)
    model.allocate(2 * each)
    model.pool.keys.zero_()
    model.pool.values.zero_()
    known = [1] * (past + 1)
    model.open([Opening(i, known, 1, Sampling(temperature=0)) for i in range(2)])
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        # a GPU has no such kernel
        patch.setattr("runtime.sampling.sampler.sampling_library", lambda: None)
        # inference mode hides operators
        patch.setattr(Executor, "start", Executor.start.__wrapped__)  # type: ignore[attr-defined]
        model.start([Step(i, past, 1, True, range(i * each, (i + 1) * each)) for i in range(2)], ())
        with Operators() as called, launched() as ours:
            model.start([Step(i, past + 1, 1, True, ()) for i in range(2)], ())
    assert ours
    return len(ours) + sum(not operator.ours for operator in called.launched)


@pytest.mark.parametrize(("past", "most"), [(20, PER_LAYER), (300, PER_LAYER + MERGE)])
def test_a_layer_of_a_decode_step_takes_few_launches(past: int, most: int) -> None:
    """The merge of a row's splits is a launch more."""
    assert launches(2, past) - launches(1, past) <= most
