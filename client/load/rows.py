"""A server's record of its iterations (``--record FILE``), as spans of time for each request.

The file's clock is mapped onto the client's run; its requests are the client's by their
X-Request-Id. docs/metrics.md has the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from client.load.records import Run

_GAP_S = 0.02  # between two iterations that follow each other


class Span(NamedTuple):
    """A request was in this state (prefill, chunk, decode, held, paused) for so long; seconds since
    the start of the run."""

    kind: str
    start_s: float
    end_s: float


def spans(files: Iterable[Path], run: Run) -> dict[int, list[Span]]:
    """By index of the client's requests, as far as they are found in a file.

    Empty if no file can be read; pictures then use the client's records.
    """
    if run.began_unix_s is None:
        return {}
    found: dict[int, list[Span]] = {}
    for file in files:
        found |= _read(file, run, run.began_unix_s)
    return found


def _read(file: Path, run: Run, began_s: float) -> dict[int, list[Span]]:
    indices = {run.request_id(outcome.index): outcome.index for outcome in run.outcomes}
    try:
        head, *lines = (json.loads(line) for line in file.read_text().splitlines())
        shift_s = head["unix_s"] - head["clock_s"] - began_s
        index_of = {
            line["request"]: indices[line["request_id"]]
            for line in lines
            if line["type"] == "arrived" and line["request_id"] in indices
        }
        found: dict[int, list[Span]] = {index: [] for index in index_of.values()}
        for line in lines:
            if line["type"] == "iteration":
                _take(line, shift_s, index_of, found)
    except (OSError, ValueError, LookupError, TypeError):
        return {}
    return found


def _take(
    iteration: dict[str, Any],
    shift_s: float,
    index_of: Mapping[int, int],
    found: Mapping[int, list[Span]],
) -> None:
    """Lengthens the last span of each of its requests, or begins a new one."""
    start_s = iteration["start_s"] + shift_s
    end_s = start_s + iteration["duration_s"]
    for request, _, _, kind, *_ in iteration["rows"]:
        if request not in index_of:
            continue
        own = found[index_of[request]]
        if own and own[-1].kind == kind and start_s - own[-1].end_s <= _GAP_S:
            own[-1] = own[-1]._replace(end_s=end_s)
        else:
            own.append(Span(kind, start_s, end_s))


def as_json(found: Mapping[int, Sequence[Span]], kept: Sequence[int]) -> dict[str, Any]:
    """These requests' spans, in whole microseconds."""
    return {
        str(index): [[s.kind, round(s.start_s, 6), round(s.end_s, 6)] for s in found[index]]
        for index in kept
        if index in found
    }


def from_json(data: dict[str, Any]) -> dict[int, list[Span]]:
    return {int(index): [Span(*s) for s in own] for index, own in data.items()}
