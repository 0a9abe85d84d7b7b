"""Dynamic batching: a ragged pack. The rows' tokens lie one after the other, prefill beside
decode; the linear layers see one matrix of tokens, attention sees each row's own past
("selective batching", Orca, OSDI '22, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

from seams import Outcome, RaggedModel, Row


def generate(model: RaggedModel, rows: Sequence[Row]) -> Outcome:
    """One iteration for sequences of any length and phase."""
    return model.forward_ragged(
        [token for row in rows for token in row.tokens],
        [len(row.tokens) for row in rows],
        [row.start for row in rows],
        [row.kv for row in rows],
        [row.draw for row in rows],
    )
