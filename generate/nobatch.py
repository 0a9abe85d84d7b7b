"""No batching: one row, nothing to pad."""

from __future__ import annotations

from collections.abc import Sequence

from seams import Step


def lay_out(steps: Sequence[Step]) -> Sequence[Step]:
    """One sequence: its prompt at first, then a token at a time."""
    (step,) = steps
    return [step]
