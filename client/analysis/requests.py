"""The requests of a run as one table, from which every figure is computed.

A row is a request, times are seconds from the start of the run; NaN where a time or a number is not
known. Beside the rows are the arrival times of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from client.analysis.statistics import Floats
from client.load.records import Outcome

ROW = np.dtype(
    [
        ("deferred", "?"), ("ok", "?"), ("unfinished", "?"), ("prompt_tokens", "f8"),
        ("output_tokens", "f8"), ("intended_s", "f8"), ("origin_s", "f8"), ("sent_s", "f8"),
        ("first_s", "f8"), ("last_s", "f8"), ("end_s", "f8"), ("queue_s", "f8"),
        ("deadline_s", "f8"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """``rows`` are of `ROW`; the n-th token arrived at ``token_s[n]`` for the row ``token_row[n]``.

    ``last_s`` is the time of the last token: the end of the response if it was not streamed.
    """

    rows: npt.NDArray[Any]
    token_s: Floats
    token_row: npt.NDArray[np.int64]

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.rows[column]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Requests:
        """The chosen rows and their tokens."""
        kept = chosen[self.token_row]
        row = np.cumsum(chosen) - 1
        return Requests(self.rows[chosen], self.token_s[kept], row[self.token_row[kept]])


def table_of(outcomes: Sequence[Outcome]) -> Requests:
    rows = [
        (
            o.service == "deferred", o.ok, o.unfinished, o.prompt_tokens, o.output_tokens,
            o.intended_s, o.origin_s, o.sent_s, o.first_s,
            o.deliveries[-1][0] if o.deliveries else o.end_s, o.end_s, o.queue_s, o.deadline_s,
        )
        for o in outcomes
    ]  # fmt: skip
    events = [(row, at, n) for row, o in enumerate(outcomes) for at, n in o.deliveries]
    row, at, n = zip(*events, strict=True) if events else ((), (), ())
    repeats = np.array(n, dtype=np.int64)
    return Requests(
        np.array(rows, dtype=ROW),
        np.repeat(np.array(at, dtype=np.float64), repeats),
        np.repeat(np.array(row, dtype=np.int64), repeats),
    )


def tokens_between(requests: Requests, start_s: float, end_s: float) -> int:
    """Tokens delivered in the window; a response without a stream delivers all at its end."""
    streamed = np.zeros(len(requests.rows), dtype=np.bool_)
    streamed[requests.token_row] = True
    at, end = requests.token_s, requests["end_s"]
    whole = ~streamed & (start_s <= end) & (end <= end_s)
    return int(np.sum((start_s <= at) & (at <= end_s))) + int(
        np.nansum(requests["output_tokens"][whole])
    )
