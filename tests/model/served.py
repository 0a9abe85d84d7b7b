"""Serves requests with the engine and a real model until they have ended."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from batching import BatchingManager
from benchmarks.bare import Tally
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from engine.speculation import Speculation
from generate.modes import MODES, ModeName, make_ledger
from scheduling.prediction.predictor import Predictor
from seams import Model, Policy


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
    tally = Tally(predictor)
    manager = BatchingManager(
        policy, tally, max_batch_size=rows, max_waiting=100, lookahead=lookahead,
        speculation=Speculation(drafts, predictor) if drafts else None,
    )  # fmt: skip
    manager.serve(model, ledger)
    coming = deque(sorted(inferences, key=lambda inference: inference.arrival_s))
    for step in itertools.count():
        while coming and coming[0].arrival_s <= step:
            manager.enqueue(coming.popleft())
        for inference in (leaving or {}).get(step, ()):
            if not inference.ended:
                manager.cancel(inference)
        before()
        wait = manager.step(MODES[mode].lay_out, lambda now=step: float(now))  # type: ignore[misc]
        if isinstance(wait, Wait) and not coming:
            break
    assert ledger.used == 0
    assert all(inference.ended for inference in inferences)
    return tally


def answers(inferences: Sequence[Inference]) -> list[list[int]]:
    return [inference.ids[inference.prompt_tokens :] for inference in inferences]
