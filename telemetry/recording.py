"""`--record FILE` of a server: its history as JSON lines, written and read.

The journal's thread reads the history as any other reader does: where the disk is too slow, lines
are missing, and a line says how many. docs/deployment.md has the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.lifecycle import Arrived, Ended, Event, History
from seams import KINDS, IterationRecord, RequestRecord, Rows
from telemetry.journal import Journal, Line


class Recording(Journal):
    """What happens from now on. `facts`: what the first line says of the server."""

    def __init__(self, path: Path, history: History, facts: Line) -> None:
        super().__init__(path, "server", facts)
        self._history = history
        self._next = 0

    def new_lines(self) -> Iterable[Line]:
        new = self._history.since(self._next)
        self._next = new.next
        if new.missed:
            yield {"type": "missed", "events": new.missed}
        yield from map(as_json, new.events)


# the fields of lines, and of the events that they are made of
ARRIVED = {
    "request": "request",
    "at_s": "at_s",
    "prompt_tokens": "prompt_tokens",
    "max_tokens": "max_tokens",
    "class": "service_class",
    "request_id": "request_id",
    "user": "user",
    "program": "program",
    "priority": "priority",
}
ITERATION = {
    "start_s": "start_s",
    "duration_s": "duration_s",
    "generated": "num_generated",
    "padding": "padding",
    "waiting": "num_waiting",
    "used": "used_blocks",
    "cached": "cached_blocks",
    "free": "free_blocks",
    "preempted": "preempted",
}
ENDED = {
    "end": "end",
    "arrival_s": "arrival_s",
    "admitted_s": "admitted_s",
    "first_token_s": "first_token_s",
    "last_token_s": "last_token_s",
    "end_s": "end_s",
    "generated": "generated",
    "preemptions": "num_preemptions",
}


def as_json(event: Event) -> dict[str, Any]:
    """A line of the file. Times in seconds, on the clock of the first line's `clock_s`."""
    match event:
        case Arrived():
            return {"type": "arrived", **_line(event, ARRIVED)}
        case IterationRecord():
            return {"type": "iteration", **_line(event, ITERATION), "rows": list(event.rows)}
        case Ended(request=request, record=record):
            return {"type": "ended", "request": request, **_line(record, ENDED)}


def _line(record: object, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(record, attribute) for name, attribute in names.items()}


def event_of(line: Line) -> Event | None:
    """The inverse, as far as a file says it; None of a line of another kind."""

    def fields(names: Mapping[str, str]) -> dict[str, Any]:
        return {attribute: line[name] for name, attribute in names.items() if name in line}

    match line["type"]:
        case "arrived":
            return Arrived(**fields(ARRIVED))
        case "iteration":
            columns: Sequence[Sequence[Any]] = list(zip(*line["rows"], strict=True))
            requests, slots, tokens, kinds, *drafts = columns or ((), (), (), ())
            accepted, rejected = drafts or ((), ())
            indices = bytes(map(KINDS.index, kinds))
            return IterationRecord(
                batch_size=sum(kind != "paused" for kind in kinds),
                num_tokens=sum(tokens),
                rows=Rows(requests, slots, tokens, indices, accepted, rejected),
                num_positions=sum(tokens) + line["padding"] + sum(rejected),
                accepted_drafts=sum(accepted),
                rejected_drafts=sum(rejected),
                **fields(ITERATION),
            )
        case "ended":
            record = RequestRecord(
                prompt_tokens=0, max_tokens=0, service_class="immediate", **fields(ENDED)
            )
            return Ended(line["request"], record)
    return None
