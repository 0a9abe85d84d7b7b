"""Dynamic batching: a ragged pack. The rows' tokens lie one after the other, prefill beside decode;
the linear layers see one matrix of tokens, attention sees each row's own past ("selective
batching", Orca, OSDI '22, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

from seams import Step


def lay_out(steps: Sequence[Step]) -> Sequence[Step]:
    """Rows of any length and phase, nothing padded."""
    return steps
