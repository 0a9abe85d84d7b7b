"""Serves requests with drafts until they have ended."""

from __future__ import annotations

from collections.abc import Sequence

from batching import BatchingManager
from benchmarks.bare import Tally
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Wait
from engine.speculation import Speculation
from generate.dynamic import lay_out
from scheduling.prediction.predictor import Predictor
from seams import Model, Policy


def serve(
    model: Model, inferences: Sequence[Inference], policy: Policy, ledger: Ledger, most: int
) -> None:
    """`most`: drafts of a row; 0: without speculation. Four rows at most."""
    predictor = Predictor()
    manager = BatchingManager(
        policy, Tally(predictor), max_batch_size=4, max_waiting=100,
        speculation=Speculation(most, predictor) if most else None,
    )  # fmt: skip
    manager.serve(model, ledger)
    for inference in inferences:
        manager.enqueue(inference)
    while not isinstance(manager.step(lay_out, lambda: 0.0), Wait):
        pass
    assert ledger.used == 0
    assert not any(inference.error for inference in inferences)
