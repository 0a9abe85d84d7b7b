"""No batching: one row, nothing to pad."""

from __future__ import annotations

from collections.abc import Sequence

from seams import DenseModel, Outcome, Row


def generate(model: DenseModel, rows: Sequence[Row]) -> Outcome:
    """One iteration for one sequence: its prompt at first, then a token at a time."""
    (row,) = rows
    return model.forward([row.tokens], [len(row.tokens)], [row.kv], [row.draw])
