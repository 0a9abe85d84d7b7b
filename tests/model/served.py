"""Serves requests with the engine and a real model until they have ended; a small such model."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch

from batching import BatchingManager
from benchmarks.bare import Tally
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from engine.speculation import Speculation
from generate.modes import MODES, ModeName, make_ledger
from models.gpt2 import GPT, GPTConfig, init_weights
from runtime.executor import Executor
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from scheduling.prediction.predictor import Predictor
from seams import Model, Policy

POLICIES: list[tuple[ModeName, Policy]] = [
    ("nobatch", NoBatch()),
    ("static", Static(max_wait_s=0.0)),
    ("dynamic", Orca()),
    ("dynamic", StallFree(token_budget=16)),
]
VOCAB = 97
CONFIG = GPTConfig(vocab_size=VOCAB, context=64, n_layer=1, n_head=2, n_embd=32)


def small(
    kind: type[Executor], dtype: torch.dtype, blocks: int, *, kernel: bool | None
) -> Executor:
    network = GPT(CONFIG)
    init_weights(network, 0)
    network.eval().requires_grad_(False).to(dtype)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8)  # logits that differ
    model = kind(network, dtype, "small", kernel=kernel)
    model.allocate(blocks)
    return model


def serve(
    model: Model,
    inferences: Sequence[Inference],
    policy: Policy,
    ledger: Ledger | None = None,
    *,
    mode: ModeName = "dynamic",
    rows: int = 4,
    lookahead: int = 0,
    drafts: int = 0,
    leaving: Mapping[int, Sequence[Inference]] | None = None,
    before: Callable[[], object] = lambda: None,
) -> Tally:
    """A request arrives at the step that `arrival_s` says, and is cancelled at that of `leaving`,
    unless it has ended. `drafts`: of a row at most; 0: without speculation. `before` every step."""
    predictor, ledger = Predictor(), ledger or make_ledger(mode, model)
    tally = Tally()
    manager = BatchingManager(
        policy, [tally, predictor], max_batch_size=rows, max_waiting=100, lookahead=lookahead,
        speculation=Speculation(drafts, predictor) if drafts else None,
    )  # fmt: skip
    manager.serve(model, ledger)
    coming = deque(sorted(inferences, key=lambda inference: inference.arrival_s))
    for step in itertools.count():
        while coming and coming[0].arrival_s <= step:
            manager.enqueue(coming.popleft())
        for inference in (leaving or {}).get(step, ()):
            if inference.end is None:
                manager.cancel(inference)
        before()
        wait = manager.step(MODES[mode].lay_out, lambda now=step: float(now))  # type: ignore[misc]
        if isinstance(wait, Wait) and not coming:
            break
    assert ledger.used == 0
    assert all(inference.end is not None for inference in inferences)
    return tally


def answers(inferences: Sequence[Inference]) -> list[list[int]]:
    return [inference.ids[inference.prompt_tokens :] for inference in inferences]
