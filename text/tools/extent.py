"""Where a JSON object or array ends in a text that grows."""

from __future__ import annotations

import re

_FIRST = re.compile(r"\S")
_OUTSIDE = re.compile(r'["{}\[\]]|[^\s\w:,.+-]')  # brackets, strings, and what JSON cannot have
_INSIDE = re.compile(r'["\\]')


class Extent:
    """The object or array that follows `at` of a text, blanks aside. Each character is read once,
    and only far enough to find the end: what is complete need not be valid."""

    def __init__(self, at: int) -> None:
        self.at = at  # characters before it were read
        self.begin: int | None = None
        self.end: int | None = None
        self.failed = False  # it is no object or array
        self._depth = 0
        self._in_string = False

    def read(self, text: str) -> bool:
        """Whether the text so far decides where it ends, or that it fails."""
        while self.end is None and not self.failed:
            if not self._step(text):
                return False
        return True

    def _step(self, text: str) -> bool:
        pattern = _FIRST if self.begin is None else _INSIDE if self._in_string else _OUTSIDE
        sign = pattern.search(text, self.at)
        if sign is None:
            self.at = len(text)
            return False
        if self.begin is None:
            self.begin = sign.start()
            self.failed = sign[0] not in "{["
        self.at = sign.end()
        match sign[0]:
            case '"':
                self._in_string = not self._in_string
            case "\\" if self._in_string:
                if self.at == len(text):  # what it escapes is yet to come
                    self.at -= 1
                    return False
                self.at += 1
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                if self._depth == 0:
                    self.end = self.at
            case _:
                self.failed = True
        return True
