"""A server's record of its iterations (``--record FILE``), as stretches of time for each request.

The file's clock is mapped onto the client's run, and its requests onto those of the client: in the
order in which they were sent, by their lengths. docs/metrics.md has the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from client.load.records import Run

KINDS = ("prefill", "chunk", "decode", "held", "paused")
_GAP_S = 0.02  # between two iterations that follow each other
_EARLY_S = 0.005  # by which clocks may differ


class Stretch(NamedTuple):
    """A request was in this state (`KINDS`) for so long; seconds since the start of the run."""

    kind: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Recorded:
    """One request of the file; seconds since 1970."""

    at_s: float
    tokens: int
    stretches: list[Stretch]


def stretches(files: Iterable[Path], run: Run) -> dict[int, list[Stretch]]:
    """By index of the client's requests, as far as they are found in a file.

    Empty if no file can be read; pictures then use the client's records.
    """
    began_s = run.began_unix_s
    if began_s is None:
        return {}
    recorded = [r for file in files for r in _read(file, began_s, began_s + run.wall_s)]
    recorded.sort(key=lambda r: r.at_s)
    found = {}
    for outcome in sorted(run.outcomes, key=lambda o: o.sent_s):
        sent_s, left_s = (began_s + t for t in (outcome.sent_s, outcome.left_s))
        mine = next(
            (r for r in recorded if r.tokens == outcome.requested_tokens
             and sent_s - _EARLY_S <= r.at_s <= left_s),
            None,
        )  # fmt: skip
        if mine is not None:
            recorded.remove(mine)
            found[outcome.index] = [
                Stretch(s.kind, s.start_s - began_s, s.end_s - began_s) for s in mine.stretches
            ]
    return found


def _read(file: Path, from_s: float, to_s: float) -> list[_Recorded]:
    """The requests that arrived within that time."""
    try:
        head, *lines = (json.loads(line) for line in file.read_text().splitlines())
        shift_s = head["unix_s"] - head["clock_s"]
        arrived = {
            line["request"]: _Recorded(line["at_s"] + shift_s, line["max_tokens"], [])
            for line in lines
            if line["type"] == "arrived" and from_s <= line["at_s"] + shift_s <= to_s
        }
        for line in lines:
            if line["type"] == "iteration":
                _take(line, shift_s, arrived)
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return list(arrived.values())


def _take(iteration: dict[str, Any], shift_s: float, arrived: dict[int, _Recorded]) -> None:
    """Lengthens the last stretch of each of its requests, or begins a new one."""
    start_s = iteration["start_s"] + shift_s
    end_s = start_s + iteration["duration_s"]
    for request, _, _, kind in iteration["rows"]:
        if request not in arrived:
            continue
        own = arrived[request].stretches
        if own and own[-1].kind == kind and start_s - own[-1].end_s <= _GAP_S:
            own[-1] = own[-1]._replace(end_s=end_s)
        else:
            own.append(Stretch(kind, start_s, end_s))


def as_json(found: Mapping[int, Sequence[Stretch]], kept: Sequence[int]) -> dict[str, Any]:
    """These requests' stretches, in whole microseconds."""
    return {
        str(index): [[s.kind, round(s.start_s, 6), round(s.end_s, 6)] for s in found[index]]
        for index in kept
        if index in found
    }


def from_json(data: dict[str, Any]) -> dict[int, list[Stretch]]:
    return {int(index): [Stretch(*s) for s in own] for index, own in data.items()}
