"""Passes of a long iteration through the network, and what of it is computed at all."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import nn

from generate.modes import ModeName
from model import LoadOptions, load_model
from models.gpt2 import Block, causal_attention
from runtime.attention import attention_kernel
from runtime.executor import Executor
from seams import Opening, Outcome, Sampling, Step

PROMPTS = (5, 9, 16, 1, 12)


def loaded(mode: ModeName, dtype: str = "float32") -> Executor:
    return load_model(LoadOptions(mode, "embedded", "cpu", dtype, 0, max_batch_size=8))


def counted(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each call."""
    calls: list[int] = []
    kind, call = type(module), type(module).__call__

    def counting(self: nn.Module, first: torch.Tensor, *rest: object) -> torch.Tensor:
        if self is module:
            calls.append(len(first))
        result: torch.Tensor = call(self, first, *rest)
        return result

    monkeypatch.setattr(kind, "__call__", counting)
    return calls


modes = pytest.mark.parametrize("mode", ["static", "dynamic"])


@modes
def test_an_iteration_in_passes_computes_the_same(
    mode: ModeName, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(pass_tokens: int | None) -> tuple[Outcome, int]:
        model = loaded(mode)
        if not model.info.batch_invariant or attention_kernel(model.shape) is None:
            pytest.skip("torch or oneDNN computes layers here")
        calls = counted(model.network, monkeypatch)
        if pass_tokens is not None:
            monkeypatch.setattr(model, "_pass_tokens", pass_tokens)
        asked = Sampling(temperature=0, logprobs=2, prompt_logprobs=2)
        model.open([Opening(i, list(range(n)), n, asked) for i, n in enumerate(PROMPTS)])
        padded = max(PROMPTS) if mode == "static" else 0
        new = [Step(i, 0, n, True, (i,), max(padded - n, 0)) for i, n in enumerate(PROMPTS)]
        return replace(model.start(new, ()).result(), duration_s=0.0), len(calls)

    whole, one = scores(None)
    divided, several = scores(16)
    assert divided == whole
    assert one == 1
    assert several > 2


@pytest.mark.parametrize(
    ("draws", "scored", "rows"),
    [((False, True), None, 1), ((False, False), None, 0), ((True, True), 0, 7)],
    ids=["a part of a prompt", "parts of prompts", "scored prompts"],
)
@modes
def test_the_last_block_computes_only_hidden_states_that_are_used(
    mode: ModeName,
    draws: tuple[bool, bool],
    scored: int | None,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rows of four and three tokens; logits are those of the whole network."""
    model = loaded(mode)
    ids = [[5, 6, 7, 8], [9, 10, 11]]
    asked = Sampling(temperature=0, logprobs=1, prompt_logprobs=scored)
    model.open([Opening(i, of_one, len(of_one), asked) for i, of_one in enumerate(ids)])
    seen = counted(cast("Block", model.network.blocks[-1]).fc, monkeypatch)
    padding = (0, 1 if mode == "static" else 0)
    steps = [Step(i, 0, len(ids[i]), draws[i], (i,), padding[i]) for i in range(2)]
    outcome = model.start(steps, ()).result()
    assert sum(seen) == rows
    for row, draw in enumerate(draws):
        assert len(outcome.tokens[row]) == draw
        if draw:
            given = torch.tensor(ids[row])
            hidden = model.network(given, torch.arange(len(given)), one_row)
            best = model.network.head(hidden)[-1].log_softmax(-1).max(-1)
            assert outcome.tokens[row] == [int(best.indices)]
            assert outcome.logprobs[row][0].logprob == pytest.approx(float(best.values), abs=1e-4)


def one_row(_: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`[N, H, D]` in and out."""
    return causal_attention(0, q[None], k[None], v[None])[0]
