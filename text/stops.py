"""Finds the stop strings of a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Text that ends where the first of `stops` begins. First is the one that is complete first;
    of those complete at the same character, the longest. What may yet become a stop string is
    held back, so the pieces joined are the same however the text was cut. `included`: the text ends
    with the stop string instead."""

    def __init__(self, stops: Sequence[str], *, included: bool = False) -> None:
        self._stops = stops
        self._included = included
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that certainly precedes any stop string."""
        if self.found or not (self._stops and text):
            return "" if self.found else text
        text = self._held + text
        ends = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if ends:
            self.found = True
            safe = min(ends)[0 if self._included else 1]
        else:
            safe = min(begins(text, stop) for stop in self._stops)
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """The rest, when no more text will come."""
        return "" if self.found else self._held


def begins(text: str, stop: str) -> int:
    """Where at the end of `text` a part of `stop` begins; the length of the text if nowhere."""
    for start in range(max(0, len(text) - len(stop) + 1), len(text)):
        if stop.startswith(text[start:]):
            return start
    return len(text)
