"""Finds the stop strings of a text that arrives in pieces.

All of them are searched at once, each character once: the automaton of Aho and Corasick ("Efficient
string matching", 1975), whose state is the longest end of the text that begins a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """What finders of the same stop strings share. States are numbers; 0 is where nothing of a stop
    string has come. The others are made when a text first gets there: texts are short, and stop
    strings may be long."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: dict[tuple[int, str], int] = {}  # 0: no stop string continues so
        self.begins = [stops]  # those that begin as the state has it
        self._shorter = [0]  # the state of the next shorter end that begins a stop string
        self.begun = [0]  # characters of a stop string that have come,
        self.complete = [0]  # and the length of the longest one that is complete

    def _grown(self, state: int, character: str) -> int:
        longer = self._next.get((state, character))
        if longer is None:
            at = self.begun[state]
            begins = [stop for stop in self.begins[state] if stop[at : at + 1] == character]
            longer = self._added(state, character, begins) if begins else 0
            self._next[state, character] = longer
        return longer

    def _added(self, parent: int, character: str, begins: Sequence[str]) -> int:
        length = self.begun[parent] + 1
        shorter = self.after(self._shorter[parent], character) if parent else 0
        self.begins.append(begins)
        self._shorter.append(shorter)
        self.begun.append(length)
        ends = any(len(stop) == length for stop in begins)
        self.complete.append(length if ends else self.complete[shorter])
        return len(self.begun) - 1

    def after(self, state: int, character: str) -> int:
        """The state that follows."""
        while not (longer := self._grown(state, character)) and state:
            state = self._shorter[state]
        return longer


class StopFinder:
    """Text that ends where the first of the stop strings begins. First is the one that is complete
    first; of those complete at the same character, the longest. What may yet become a stop string
    is held back, so the pieces joined are the same however the text was cut. `included`: the text
    ends with the stop string instead."""

    def __init__(self, stops: Stops, *, included: bool = False) -> None:
        self._stops = stops
        self._included = included
        self._state = 0
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that certainly precedes any stop string."""
        if self.found or not self._stops.begins[0]:
            return "" if self.found else text
        stops, new, text = self._stops, text, self._held + text
        for end, character in enumerate(new, len(text) - len(new) + 1):
            self._state = stops.after(self._state, character)
            if length := stops.complete[self._state]:
                self.found = True
                return text[: end if self._included else end - length]
        safe = len(text) - stops.begun[self._state]
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
