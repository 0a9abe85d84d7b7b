"""Turns a request's tokens into text while they arrive, for every API.

Everything here runs in the handlers' threads: the engine only appends ids and sets `updated`. A
follower reads the new tokens of one request, and an API's reader makes its items of them. `follow`
reads several requests; its None means that nothing is there yet, and `awaited` waits for it.
Streamed or not, a response is made of the same items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Protocol, TypeVar

from engine.inference import Inference
from text.tokenizer import Detokenizer, Tokenizer

Item = TypeVar("Item")
Read = TypeVar("Read", covariant=True)


@dataclass(slots=True)  # frozen takes three times as long to make
class NewToken:
    index: int  # among the tokens that are followed, from 0
    id: int
    text: str  # what it adds; empty while its last character is incomplete, and of an end token
    is_end: bool


class Follower:
    """The tokens of one request, each once. `first`: how many of its ids come before them."""

    def __init__(self, inference: Inference, tokenizer: Tokenizer, first: int) -> None:
        self.count = 0  # tokens that were read
        self.met_end = False  # the newest one is an end token
        self.ended = False  # the request had ended before the newest tokens were read
        self._inference = inference
        self._first = first
        self._detokenizer = Detokenizer(tokenizer)
        self._bytes_of = tokenizer.token_bytes

    def new(self) -> Iterator[NewToken]:
        """The tokens since the last call; those that are not taken come again."""
        # which is set once statistics have the request; read before the ids, as none follow
        self.ended = self._inference.event.is_set()
        return self._tokens()

    def _tokens(self) -> Iterator[NewToken]:
        for token in self._inference.ids[self._first + self.count :]:
            is_end = self.met_end = token in self._inference.end_ids
            index, self.count = self.count, self.count + 1
            text = "" if is_end else self._detokenizer.decode(self._bytes_of(token))
            yield NewToken(index, token, text, is_end)

    def text(self, most: int) -> str:
        """The same as one text, of up to `most` tokens in all, and at the end the rest: takes a
        fraction of the time."""
        self.ended = self._inference.event.is_set()
        new = self._inference.ids[self._first + self.count : self._first + most]
        self.count += len(new)
        if new and new[-1] in self._inference.end_ids:  # none follows
            self.met_end = True
            del new[-1]
        text = self._detokenizer.decode(b"".join(map(self._bytes_of, new)))
        return text + self._detokenizer.finish() if self.ended else text

    def rest(self) -> str:
        """The text of an incomplete last character. Call it once, after the last token."""
        return self._detokenizer.finish()


class Reader(Protocol[Read]):
    inference: Inference
    ended: bool  # nothing will follow what was read

    def read(self) -> Iterable[Read]:
        """What is new. Raises ApiError where there will be no response."""


def follow(readers: Sequence[Reader[Item]]) -> Iterator[Item | None]:
    """The items of all readers, as they come, until all have ended; None where there is none
    before the next update. Raises as the readers do."""
    unfinished = list(readers)
    while unfinished:
        for reader in tuple(unfinished):
            yield from reader.read()
            if reader.ended:
                unfinished.remove(reader)
        if unfinished:
            yield None


def awaited(items: Iterable[Item | None], updated: Event) -> Iterator[Item]:
    """All items; waits for an update where there is none yet."""
    for item in items:
        if item is None:
            updated.wait()
            updated.clear()
        else:
            yield item
