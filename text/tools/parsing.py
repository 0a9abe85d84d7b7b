"""Finds the calls in an answer while it arrives; before they are complete where a grammar describes
them.

What does not parse as a call stays text, and text outside of calls stays as it is, except for
blanks between calls. The pieces, joined, are the same however the answer was cut.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from text.stops import begins
from text.tools.extent import Extent
from text.tools.forms import KEYS, CallForm, read_calls

MOST_CHARACTERS = 2**18  # of a call that is held back until it is complete
MOST_FAILED = 2**20  # characters read of what was no call: further marks are text
_HEAD = re.compile(rf'"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:{"|".join(KEYS)})"\s*:\s*(?=\{{)')


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of an answer's call `index`. `name`: set in the first of its pieces. The `arguments`
    of all of them, joined, are a JSON object."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """A part of what a model writes before its answer, for itself."""

    text: str


Piece = str | CallPiece | ReasoningPiece


class Parser(Protocol):
    """`push` and `finish` return what is certain by now; nothing follows `finish`."""

    @property
    def calls(self) -> int:
        """That have begun."""

    @property
    def complete(self) -> bool:
        """No further call or text is wanted."""

    @property
    def reasons(self) -> bool:
        """What is pushed next is reasoning, as far as is known."""

    def push(self, text: str) -> Sequence[Piece]: ...

    def finish(self) -> Sequence[Piece]: ...


class CallParser:
    """For an answer that may contain calls of `names`. A call is held back until it is complete, as
    it may turn out to be text. `most_calls`: what follows the last of them is left out."""

    reasons = False
    _bare: tuple[str, ...] = ("{", "[")  # how a call without a mark begins

    def __init__(
        self, form: CallForm, names: Collection[str], most_calls: int | None = None
    ) -> None:
        self.calls = 0
        self._form = form
        self._names = names
        self._most = most_calls
        self._undecided = ""
        self._extent: Extent | None = None  # of the call that may begin the undecided text,
        self._mark = 0  # with so many characters before its JSON
        self._failed = 0  # characters read of calls that turned out to be text, again for each
        self._blank = ""  # the text since the beginning or the last call,
        self._only_blank = True  # while it is nothing else
        self._closing = False  # a call was complete, and what closes it may follow
        self._pieces: list[Piece] = []

    @property
    def complete(self) -> bool:
        return self.calls == self._most

    def push(self, text: str) -> Sequence[Piece]:
        self._undecided += text
        while self._advance(ended=False):
            pass
        return self._taken()

    def finish(self) -> Sequence[Piece]:
        while self._advance(ended=True):
            pass
        if self._blank and not self.calls:
            self._pieces.append(self._blank)
        return self._taken()

    def _taken(self) -> Sequence[Piece]:
        taken, self._pieces = self._pieces, []
        return taken

    def _advance(self, *, ended: bool) -> bool:
        """Decides on a part of the undecided text; whether there may be more to decide on."""
        if self.complete:
            self._undecided = ""
            return False
        if self._extent is not None:
            return self._read_call(self._extent, ended=ended)
        if self._closing:
            return self._close(ended=ended)
        return self._seek(ended=ended)

    def _seek(self, *, ended: bool) -> bool:
        """The beginning of a call."""
        text, opening = self._undecided, self._form.opening
        blanks = len(text) - len(text.lstrip())
        if self._form.bare and self._only_blank and text.startswith(self._bare, blanks):
            at, self._mark = blanks, 0
        else:
            at, self._mark = text.find(opening), len(opening)
        spent = self._failed > MOST_FAILED
        if at < 0 or spent:
            self._release(len(text) if ended or spent else begins(text, opening))
            return False
        self._release(at)
        self._extent = Extent(self._mark)
        return True

    def _read_call(self, extent: Extent, *, ended: bool) -> bool:
        text = self._undecided
        decided = extent.read(text) or extent.at > MOST_CHARACTERS
        if not (decided or ended):
            return False
        self._extent, calls = None, None
        if extent.end is not None and extent.end <= MOST_CHARACTERS:
            calls = read_calls(text[extent.begin : extent.end], self._names)
        if calls is None:
            self._failed += extent.at
            self._release(max(self._mark, 1))
            return True
        for call in calls if self._most is None else calls[: self._most - self.calls]:
            self._pieces += [
                CallPiece(self.calls, call.name, ""),
                CallPiece(self.calls, None, call.arguments),
            ]
            self.calls += 1
        self._undecided = text[extent.end :]
        self._blank, self._only_blank, self._closing = "", True, bool(self._form.closing)
        return True

    def _close(self, *, ended: bool) -> bool:
        """What closes a call is no text; a call may lack it."""
        text, closing = self._undecided.lstrip(), self._form.closing
        self._release(len(self._undecided) - len(text))
        if text.startswith(closing):
            self._undecided, self._blank = text[len(closing) :], ""
        elif closing.startswith(text) and not ended:
            return False
        self._closing = False
        return True

    def _release(self, count: int) -> None:
        """The first characters of the undecided text are text."""
        text, self._undecided = self._undecided[:count], self._undecided[count:]
        if self._only_blank:
            self._blank += text
            if not text.strip():
                return
            text, self._blank, self._only_blank = self._blank, "", False
        if text:
            self._pieces.append(text)


class ForcedCallParser:
    """For an answer that a grammar keeps to calls alone. Each has its name before its arguments,
    which are passed on as they arrive; an answer that ends too early has a part of them."""

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


class CallOrTextParser(ForcedCallParser):
    """For an answer that a grammar keeps either to calls, of which the first begins with `opening`,
    or to a text."""

    def __init__(self, opening: str) -> None:
        super().__init__()
        self._opening = opening
        self._head: str | None = ""  # until it is decided
        self._is_text = False

    def push(self, text: str) -> Sequence[Piece]:
        if self._head is not None:
            text = self._head + text
            begun = text.lstrip()
            if len(begun) < len(self._opening) and self._opening.startswith(begun):
                self._head = text
                return []
            self._head, self._is_text = None, not begun.startswith(self._opening)
        return [text] if self._is_text and text else super().push(text)

    def finish(self) -> Sequence[Piece]:
        return [self._head] if self._head else []


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
