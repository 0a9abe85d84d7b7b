"""Finds the calls in an answer that a grammar keeps to them, before they are complete: each has its
name before its arguments, which are passed on as they arrive. An answer that ends too early has a
part of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from text.tools.extent import Extent
from text.tools.parsing import CallParser, CallPiece, Piece
from text.tools.reading import KEYS

_HEAD = re.compile(rf'"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:{"|".join(KEYS)})"\s*:\s*(?=\{{)')


class ForcedCallParser:
    """For an answer that a grammar keeps to calls alone."""

    complete = False  # the grammar ends the answer
    reasons = False

    def __init__(self) -> None:
        self.calls = 0
        self._unread = ""
        self._extent: Extent | None = None  # of the present call's arguments

    def push(self, text: str) -> Sequence[Piece]:
        self._unread += text
        pieces: list[Piece] = []
        while True:
            if self._extent is None:
                if (head := _HEAD.search(self._unread)) is None:
                    return pieces
                self._unread, self._extent = self._unread[head.end() :], Extent(0)
                pieces.append(CallPiece(self.calls, head[1], ""))
                self.calls += 1
            decided = self._extent.read(self._unread)
            read, self._unread = self._unread[: self._extent.at], self._unread[self._extent.at :]
            if read:
                pieces.append(CallPiece(self.calls - 1, None, read))
            if not decided:
                self._extent.at = 0
                return pieces
            self._extent = None

    def finish(self) -> Sequence[Piece]:
        return self.push("")


class StrictCallParser(CallParser):
    """For a text in which a grammar makes a call of whatever begins like one."""

    _bare = ("{",)
    _arguments: Extent | None = None  # of the present call
    _ending = False  # its arguments are complete, and the end of its JSON follows
    _further = False  # it is a further one of an array

    @property
    def complete(self) -> bool:
        return self.calls == self._most and self._extent is None

    def _read_call(self, extent: Extent, *, ended: bool) -> bool:
        if self._ending:
            return self._end_call()
        if self._arguments is None:
            if (head := _HEAD.search(self._undecided)) is None:
                if ended and not self._further:
                    self._release(len(self._undecided))
                return False
            self._undecided, self._arguments = self._undecided[head.end() :], Extent(0)
            self._pieces.append(CallPiece(self.calls, head[1], ""))
            self.calls += 1
        decided, at = self._arguments.read(self._undecided), self._arguments.at
        if at:
            self._pieces.append(CallPiece(self.calls - 1, None, self._undecided[:at]))
        self._undecided, self._arguments.at = self._undecided[at:], 0
        if decided:
            self._arguments, self._ending = None, True
        return decided

    def _end_call(self) -> bool:
        """Of an object; in an array, a further call may follow."""
        most = 2 if self._form.in_array else 1
        if len(self._undecided) < most:
            return False
        end, self._undecided = self._undecided[:most], self._undecided[most:]
        self._ending, self._further = False, end == "}," and self.calls != self._most
        if not self._further:
            self._extent = None
            self._blank, self._only_blank, self._closing = "", True, bool(self._form.closing)
        return True
