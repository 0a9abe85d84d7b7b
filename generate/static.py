"""Static batching: a rectangle, padded on the left to its longest row.

Left padding ends all rows in the same column, where the next token is drawn. A row that is done
stays and is computed as padding, which is the cost of a rectangle.
"""

from __future__ import annotations

from collections.abc import Sequence

from seams import Step


def lay_out(steps: Sequence[Step]) -> Sequence[Step]:
    """All prompts at first, then one column of tokens at a time."""
    width = max(step.num_tokens for step in steps)
    return [step._replace(padding=width - step.num_tokens) for step in steps]
