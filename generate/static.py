"""Static batching: a rectangle, padded on the left to its longest row.

Left padding ends all rows in the same column, so each iteration writes one column of the cache
for all of them. A row that is done stays and is computed as padding, as the memory layout of a
rectangle demands.
"""

from __future__ import annotations

from collections.abc import Sequence

from seams import DenseModel, Outcome, Row

PADDING_ID = 0  # any id will do: the mask hides it from every row that is still wanted


def generate(model: DenseModel, rows: Sequence[Row]) -> Outcome:
    """One iteration for the batch: all prompts at first, then one column of tokens at a time."""
    width = max(len(row.tokens) for row in rows)
    return model.forward(
        [[PADDING_ID] * (width - len(row.tokens)) + list(row.tokens) for row in rows],
        [len(row.tokens) for row in rows],
        [row.kv for row in rows],
        [row.draw for row in rows],
    )
