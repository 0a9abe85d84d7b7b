"""On the real model: requests that share blocks get the tokens of `transformers`, whatever the
blocks held before, and prompts are scored in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from requested import Sampling
from runtime.executor import Executor
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from seams import Policy
from tests.model.peer import load
from tests.model.served import serve
from tests.models.families import VOCAB, logits_of

GREEDY = Sampling(temperature=0)
NEAR_TIE = 1e-4
SYSTEM = [[(7 * n * n + k) % VOCAB for n in range(40)] for k in range(2)]

requests = st.tuples(
    st.integers(0, 1), st.integers(0, 40), st.lists(st.integers(0, VOCAB - 1), max_size=12)
)


@pytest.fixture(scope="module")
def model(checkpoint: tuple[Path, Any]) -> Executor:
    return load(checkpoint[0], "dynamic")


def poison(model: Executor, ledger: Ledger) -> None:
    """What was given back is no number, and would spread to whatever reads it."""
    model.pool.keys[:, ledger._free] = torch.nan
    model.pool.values[:, ledger._free] = torch.nan


def run(
    model: Executor,
    ledger: Ledger,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    lookahead: int = 0,
) -> list[Inference]:
    inferences = [Inference(prompt, 6, GREEDY, 0.0) for prompt in prompts]
    serve(model, inferences, policy, ledger, lookahead=lookahead,
          before=lambda: poison(model, ledger))  # fmt: skip
    return inferences


def check(peer: Any, inference: Inference) -> None:
    assert inference.end == "length", inference.error
    for known in range(inference.prompt_tokens, len(inference.ids)):
        logits = logits_of(peer, inference.ids[:known])[-1]
        assert logits.max() - logits[inference.ids[known]] < NEAR_TIE


@given(
    work=st.lists(requests, min_size=2, max_size=8),
    blocks=st.integers(8, 20),
    growth_tokens=st.sampled_from([None, 2]),
    chunked=st.booleans(),
    lookahead=st.integers(0, 1),
)
@settings(max_examples=15)
def test_with_shared_blocks_tokens_are_those_of_transformers(  # type: ignore[no-untyped-def]
    checkpoint, model, work, blocks, growth_tokens, chunked, lookahead
) -> None:
    """Begun alike and not, in little memory, so that blocks are evicted and requests preempted."""
    prompts = [[*SYSTEM[which][:length], 1, *own] for which, length, own in work]
    ledger = Ledger(blocks, model.block_tokens, growth_tokens=growth_tokens, prefix_caching=True)
    policy = StallFree(24) if chunked else Orca()
    for inference in run(model, ledger, policy, prompts, lookahead=lookahead):
        check(checkpoint[1], inference)
