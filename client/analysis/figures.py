"""The requests of a run as one table, and every figure of them, declared once.

A row is a request, times are seconds from the start of the run; NaN where a time or a number is not
known. Beside the rows are the arrival times of the tokens.

TTFT, ITL and E2E as in vLLM's ``benchmark serve``, TPOT to the last token; counted from the
intended time. Requests that were cut before their end count as +inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        ("deadline_s", "f8"), ("left_s", "f8"), ("requested_tokens", "f8"),
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

    def in_flight(self, at_s: Floats) -> Floats:
        """How many were sent and had not ended."""
        sent, left = (
            np.searchsorted(np.sort(self.rows[name]), at_s, "right")
            for name in ("sent_s", "left_s")
        )
        return (sent - left).astype(np.float64)


def table_of(outcomes: Sequence[Outcome]) -> Requests:
    rows = [
        (
            o.service == "deferred", o.ok, o.unfinished, o.prompt_tokens, o.output_tokens,
            o.intended_s, o.origin_s, o.sent_s, o.first_s,
            o.deliveries[-1][0] if o.deliveries else o.end_s, o.end_s, o.queue_s, o.deadline_s,
            o.left_s, o.requested_tokens,
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


@dataclass(frozen=True, slots=True)
class Figure:
    """``key`` names it in files, ``name`` in reports. ``of``: one for each request (or gap between
    tokens), NaN where it has none; none for a figure of the whole run.

    ``paired``: systems are compared by it, seed by seed. ``lag``: the part of the client's lateness
    that each value contains, for responses of so many tokens; only figures that have it are in
    summary.csv. ``of_ended``: it is known only of requests that ended, so that a saturated server
    shows it of its quickest ones alone.
    """

    key: str
    name: str
    of: Callable[[Requests], Floats]
    paired: bool = False
    lag: Callable[[float], float] | None = None
    of_ended: bool = False
    deferred: bool = False

    def known(self, requests: Requests) -> Floats:
        """Of the requests that have it."""
        values = self.of(requests)
        return values[~np.isnan(values)]


def _first(requests: Requests) -> Floats:
    values: Floats = requests["first_s"] - requests["origin_s"]
    return np.where(np.isnan(values) & requests["unfinished"], np.inf, values)


def _tpot(requests: Requests) -> Floats:
    """(last token - first token) / (tokens - 1), of responses with two tokens or more."""
    tokens = np.where(
        requests["ok"] & (requests["output_tokens"] >= 2), requests["output_tokens"], np.nan
    )
    values: Floats = (requests["last_s"] - requests["first_s"]) / (tokens - 1)
    return values


def _itl(requests: Requests) -> Floats:
    """The gaps between consecutive tokens of a request; tokens of the same event are 0 apart."""
    gaps: Floats = np.diff(requests.token_s)[np.diff(requests.token_row) == 0]
    return gaps


def _end(requests: Requests) -> Floats:
    values = requests["end_s"] - requests["origin_s"]
    return np.where(np.isnan(values), np.inf, values)


THROUGHPUT = Figure("throughput", "tok/s", lambda _: np.zeros(0), paired=True)
TTFT = Figure("ttft", "TTFT", _first, paired=True, lag=lambda _: 1.0)
TPOT = Figure("tpot", "TPOT", _tpot, paired=True, lag=lambda tokens: 1 / tokens, of_ended=True)
ITL = Figure("itl", "ITL", _itl, lag=lambda _: 1.0)
E2E = Figure("e2e", "E2E", _end, paired=True, lag=lambda _: 1.0)
LATENCIES = (
    TTFT, TPOT, ITL, E2E,
    Figure("queue", "queue, reported by the server", lambda r: r["queue_s"]),
    Figure("deferred_e2e", "E2E of deferred", E2E.of, deferred=True),
)  # fmt: skip
PAIRED = tuple(figure for figure in (THROUGHPUT, *LATENCIES) if figure.paired)
