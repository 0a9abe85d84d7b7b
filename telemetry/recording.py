"""`--record FILE` of a server: its history, as JSON lines.

The journal's thread reads the history as any other reader does: where the disk is too slow, lines
are missing, and a line says how many. docs/deployment.md has the format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.lifecycle import Arrived, Ended, Event, History
from seams import IterationRecord
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


def as_json(event: Event) -> dict[str, Any]:
    """A line of the file. Times in seconds, on the clock of the first line's `clock_s`."""
    match event:
        case Arrived():
            return {
                "type": "arrived",
                "request": event.request,
                "at_s": event.at_s,
                "prompt_tokens": event.prompt_tokens,
                "max_tokens": event.max_tokens,
                "class": event.service_class,
                "request_id": event.request_id,
                "user": event.user,
                "program": event.program,
                "priority": event.priority,
            }
        case IterationRecord():
            return {
                "type": "iteration",
                "start_s": event.start_s,
                "duration_s": event.duration_s,
                "rows": list(event.rows),
                "generated": event.num_generated,
                "padding": event.padding,
                "waiting": event.num_waiting,
                "used": event.used_blocks,
                "cached": event.cached_blocks,
                "free": event.free_blocks,
                "preempted": event.preempted,
            }
        case Ended(record=record):
            return {
                "type": "ended",
                "request": event.request,
                "end": record.end,
                "arrival_s": record.arrival_s,
                "admitted_s": record.admitted_s,
                "first_token_s": record.first_token_s,
                "last_token_s": record.last_token_s,
                "end_s": record.end_s,
                "generated": record.generated,
                "preemptions": record.num_preemptions,
            }
