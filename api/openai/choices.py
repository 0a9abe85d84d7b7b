"""A client's share of a request: its text up to a stop string, the calls of tools in it, its
reasoning before it, its tokens, and why it ended.

Independent of the two response formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from api.follow import Follower, NewToken
from api.service import Service
from engine.inference import Inference
from seams import TokenLogprobs
from text.stops import StopFinder, Stops
from text.tokenizer import Detokenizer
from text.tools.parsing import CallPiece, Parser, Piece, ReasoningPiece

Finish = Literal["stop", "length", "tool_calls", "function_call"]


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    offset: int  # characters of its choice's text before it
    logprobs: TokenLogprobs | None  # None: the first of a prompt, which nothing predicts


@dataclass(slots=True)  # frozen takes three times as long to make
class Segment:
    index: int
    text: str
    tokens: Sequence[Token] = ()  # that begin in this text, where logprobs are asked for
    finish: Finish | None = None
    ending: Sequence[Token] = ()  # the same of an end token or a stop string, no part of any text
    calls: Sequence[CallPiece] = ()  # that follow this text
    reasoning: str = ""  # before this text


class Choice:
    """An api.follow.Reader of one choice. `prompt_tokens`: how many of the request's first tokens
    are the client's prompt. `echo`: it is part of the text. `most_tokens`: further generated tokens
    are left out. `stop_included`: the text ends with the stop string. `parser`: finds calls in the
    text."""

    def __init__(
        self,
        index: int,
        inference: Inference,
        service: Service,
        stops: Stops,
        *,
        prompt_tokens: int,
        echo: bool = False,
        most_tokens: int,
        stop_included: bool = False,
        parser: Parser | None = None,
    ) -> None:
        self.index = index
        self.inference = inference
        self.finish: Finish | None = None
        self.ended = False
        self._service = service
        self._prompt_tokens = prompt_tokens
        self._most_tokens = most_tokens
        self._prompt_due = echo
        self._scored = inference.sampling.logprobs is not None
        self._follower = Follower(inference, service.tokenizer, prompt_tokens)
        self._finder = StopFinder(stops, included=stop_included)
        self._parser = parser
        self.reasoning_tokens = 0  # generated, the mark that ends reasoning included
        self._is_plain = parser is None and not (stops.begins[0] or self._scored)
        self._decoded = 0  # characters, those held back included
        self._sent = 0  # characters
        self._unsent: list[Token] = []

    @property
    def generated(self) -> int:
        """Tokens, up to the one that completed a stop string."""
        return self._follower.count

    def read(self) -> Iterable[Segment]:
        if not self._is_plain or self._prompt_due:
            return self._by_token()
        text = self._follower.text(self._most_tokens)
        if self._follower.ended:
            self._service.outcome(self.inference)
            self.finish, self.ended = "stop" if self._follower.met_end else "length", True
        return [Segment(self.index, text, (), self.finish)] if text or self.finish else ()

    def _by_token(self) -> Iterator[Segment]:
        new = self._follower.new()
        if self._follower.ended and not self._is_cut:
            self._service.outcome(self.inference)
        pieces: list[Piece] = []
        if self._prompt_due:
            if not self.inference.received:  # then all logprobs of the prompt are there, too
                return
            pieces += self._parsed(self._prompt())
        while not self._is_complete() and (token := next(new, None)) is not None:
            reasons = self._reasons
            pieces += self._parsed(self._take(token))
            if reasons or self._reasons:
                self.reasoning_tokens = self.generated
                self._unsent.clear()  # logprobs are those of the answer
            if self._is_cut and not self._follower.ended:
                self._service.manager.cancel(self.inference, "stop")
            if pieces and self._scored and self._parser is not None:  # tokens leave with their text
                yield from self._segments(pieces)
                pieces = []
        if self._follower.ended:
            pieces += self._parsed(self._finder.push(self._follower.rest()))
            pieces += self._parsed(self._finder.finish())
            pieces += [] if self._parser is None else self._parser.finish()
            self.finish, self.ended = "length", True
            if self._is_cut or self._follower.met_end:
                has_calls = self._parser is not None and self._parser.calls
                self.finish = "tool_calls" if has_calls else "stop"
        if pieces or self.finish or self._parser is None:
            yield from self._segments(pieces)

    def _segments(self, pieces: Sequence[Piece]) -> Iterator[Segment]:
        tokens, ending = self._sendable()
        runs = list(_runs(pieces))
        reasoning = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningPiece))
        for number, (text, calls) in enumerate(runs, 1):
            finish, rest = (self.finish, ending) if number == len(runs) else (None, [])
            if reasoning or text or calls or tokens or finish:
                yield Segment(self.index, text, tokens, finish, rest, calls, reasoning)
            tokens, reasoning = [], ""

    @property
    def _is_cut(self) -> bool:
        """No text is wanted beyond what was taken."""
        return self._finder.found or (self._parser is not None and self._parser.complete)

    def _is_complete(self) -> bool:
        return self._is_cut or self._follower.met_end or self.generated == self._most_tokens

    @property
    def _reasons(self) -> bool:
        return self._parser is not None and self._parser.reasons

    def _parsed(self, text: str) -> Sequence[Piece]:
        self._sent += len(text)
        if self._parser is None:
            return [text]
        return self._parser.push(text)

    def _take(self, token: NewToken) -> str:
        if self._scored:
            logprobs = self.inference.logprobs[token.index]
            self._unsent.append(Token(token.id, self._decoded, logprobs))
        self._decoded += len(token.text)
        if token.is_end or self.generated <= self.inference.sampling.min_tokens:
            return token.text  # no stop is looked for in it, as in vLLM
        return self._finder.push(token.text)

    def _sendable(self) -> tuple[list[Token], list[Token]]:
        """Tokens leave with their first character; at the end also, apart from them, those that
        have none in the text."""
        if self.finish is None or self._finder.found:
            shown = sum(token.offset < self._sent for token in self._unsent)
        else:
            shown = len(self._unsent) - self._follower.met_end
        ready, rest = self._unsent[:shown], self._unsent[shown:]
        self._unsent = rest if self.finish is None else []
        return ready, [] if self.finish is None else rest

    def _prompt(self) -> str:
        self._prompt_due = False
        inference = self.inference
        asked = inference.sampling.prompt_logprobs is not None
        known = [None, *inference.prompt_logprobs, *inference.logprobs] if asked else []
        detokenizer = Detokenizer(self._service.tokenizer)
        texts = []
        ids = inference.ids[: self._prompt_tokens]
        for number, piece in enumerate(self._service.tokenizer.prompt_bytes(ids)):
            if asked:
                self._unsent.append(Token(ids[number], self._decoded, known[number]))
            texts.append(detokenizer.decode(piece))
            self._decoded += len(texts[-1])
        texts.append(detokenizer.finish())
        self._decoded += len(texts[-1])
        return "".join(texts)


def _runs(pieces: Sequence[Piece]) -> Iterator[tuple[str, list[CallPiece]]]:
    """In their order: a text, which may be empty, and the calls that follow it."""
    texts: list[str] = []
    calls: list[CallPiece] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            calls.append(piece)
            continue
        if isinstance(piece, ReasoningPiece):
            continue
        if calls:
            yield "".join(texts), calls
            texts, calls = [], []
        texts.append(piece)
    yield "".join(texts), calls


def joined(parts: Sequence[Segment], choices: int) -> list[Segment]:
    """All segments of each choice joined."""
    own: list[list[Segment]] = [[] for _ in range(choices)]
    for part in parts:
        own[part.index].append(part)
    return [
        Segment(
            index,
            "".join(part.text for part in mine),
            [token for part in mine for token in part.tokens],
            mine[-1].finish,
            mine[-1].ending,
            [piece for part in mine for piece in part.calls],
            "".join(part.reasoning for part in mine),
        )
        for index, mine in enumerate(own)
    ]
