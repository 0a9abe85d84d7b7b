"""`--record FILE` of a server: its history as JSON lines, written and read.

The journal's thread reads the history as any other reader does: where the disk is too slow, lines
are missing, and a line says how many. docs/deployment.md has the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
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


# the fields of a line, by the names that its event has for them,
ARRIVED = tuple(field.name for field in fields(Arrived))
ITERATION = (
    "start_s", "duration_s", "num_generated", "padding", "num_waiting", "used_blocks",
    "cached_blocks", "free_blocks", "preempted",
)  # fmt: skip
ENDED = (
    "end", "arrival_s", "admitted_s", "first_token_s", "last_token_s", "end_s", "generated",
    "num_preemptions",
)  # fmt: skip
# and those that have another one in the file
IN_FILE = {
    "service_class": "class",
    "num_generated": "generated",
    "num_waiting": "waiting",
    "used_blocks": "used",
    "cached_blocks": "cached",
    "free_blocks": "free",
    "num_preemptions": "preemptions",
}


def as_json(event: Event) -> dict[str, Any]:
    """A line of the file. Times in seconds, on the clock of the first line's `clock_s`."""

    def line(record: object, names: Sequence[str]) -> dict[str, Any]:
        return {IN_FILE.get(name, name): getattr(record, name) for name in names}

    match event:
        case Arrived():
            return {"type": "arrived", **line(event, ARRIVED)}
        case IterationRecord():
            return {"type": "iteration", **line(event, ITERATION), "rows": list(event.rows)}
        case Ended(request=request, record=record):
            return {"type": "ended", "request": request, **line(record, ENDED)}


def event_of(line: Line) -> Event | None:
    """The inverse, as far as a line says it; None of one of another kind."""

    def known(names: Sequence[str]) -> dict[str, Any]:
        return {name: line[IN_FILE.get(name, name)] for name in names}

    match line["type"]:
        case "arrived":
            return Arrived(**known(ARRIVED))
        case "iteration":
            columns: Sequence[Sequence[Any]] = list(zip(*line["rows"], strict=True))
            requests, slots, tokens, kinds, accepted, rejected = columns or ((),) * 6
            indices = bytes(map(KINDS.index, kinds))
            return IterationRecord(
                batch_size=sum(kind != "paused" for kind in kinds),
                num_tokens=sum(tokens),
                rows=Rows(requests, slots, tokens, indices, accepted, rejected),
                num_positions=sum(tokens) + line["padding"] + sum(rejected),
                accepted_drafts=sum(accepted),
                rejected_drafts=sum(rejected),
                **known(ITERATION),
            )
        case "ended":
            record = RequestRecord(
                prompt_tokens=0, max_tokens=0, service_class="immediate", **known(ENDED)
            )
            return Ended(line["request"], record)
    return None
