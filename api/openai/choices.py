"""A client's share of a request: its text up to a stop string, its tokens, and why it ended.

Runs in the consumer's thread. Streamed or not, a response is built from these segments, so both are
the same. Independent of the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from api.service import Service
from engine.inference import Inference
from seams import TokenLogprobs
from text.stops import StopFinder
from text.tokenizer import Detokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    offset: int  # characters of its choice's text before it
    logprobs: TokenLogprobs | None  # None: the first of a prompt, which nothing predicts


@dataclass(frozen=True, slots=True)
class Segment:
    index: int
    text: str
    tokens: Sequence[Token]  # that begin in this text, where logprobs are asked for
    finish: Finish | None
    ending: Sequence[Token] = ()  # the same of an end token or a stop string, no part of any text


class Choice:
    """`prompt_tokens`: how many of the request's first tokens are the client's prompt. `echo`: it
    is part of the text. `most_tokens`: further generated tokens are left out."""

    def __init__(
        self,
        index: int,
        inference: Inference,
        service: Service,
        stops: Sequence[str],
        *,
        prompt_tokens: int,
        echo: bool = False,
        most_tokens: int,
    ) -> None:
        self.index = index
        self.inference = inference
        self.generated = 0  # tokens, up to the one that completed a stop string
        self.finish: Finish | None = None
        self._service = service
        self._prompt_tokens = prompt_tokens
        self._most_tokens = most_tokens
        self._owed = echo
        self._detokenizer = Detokenizer(service.tokenizer)
        self._finder = StopFinder(stops)
        self._ended = False  # by an end token
        self._decoded = 0  # characters, those held back included
        self._sent = 0  # characters
        self._unsent: list[Token] = []

    def read(self) -> Segment | None:
        """What is new. Raises ApiError when there will be no answer."""
        inference = self.inference
        record = inference.record  # read before the ids: none follow an end
        if record is not None and not self._finder.found:
            self._service.outcome(inference)
        texts = []
        if self._owed:
            if not self._prompt_is_known():
                return None
            texts.append(self._prompt())
        for token in inference.ids[self._prompt_tokens + self.generated :]:
            if self._finder.found or self._ended or self.generated == self._most_tokens:
                break
            texts.append(self._take(token))
            if self._finder.found and record is None:
                self._service.manager.cancel(inference, "stop")
        if record is not None:
            rest = self._detokenizer.finish()
            texts += [self._finder.push(rest), self._finder.finish()]
            self.finish = "stop" if self._finder.found or self._ended else "length"
        text = "".join(texts)
        self._sent += len(text)
        tokens, ending = self._sendable()
        if text or tokens or self.finish:
            return Segment(self.index, text, tokens, self.finish, ending)
        return None

    def _take(self, token: int) -> str:
        number, self.generated = self.generated, self.generated + 1
        if self.inference.sampling.logprobs is not None:
            logprobs = self.inference.logprobs[number]
            self._unsent.append(Token(token, self._decoded, logprobs))
        if token in self.inference.end_ids:
            self._ended = True
            return ""
        text = self._detokenizer.push([token])
        self._decoded += len(text)
        if self.generated <= self.inference.sampling.min_tokens:
            return text  # no stop is looked for in it, as in vLLM
        return self._finder.push(text)

    def _sendable(self) -> tuple[list[Token], list[Token]]:
        """Tokens leave with their first character; at the end also, apart from them, those that
        have none in the text."""
        if self.finish is None or self._finder.found:
            shown = sum(token.offset < self._sent for token in self._unsent)
        else:
            shown = len(self._unsent) - self._ended
        ready, rest = self._unsent[:shown], self._unsent[shown:]
        self._unsent = rest if self.finish is None else []
        return ready, [] if self.finish is None else rest

    def _prompt_is_known(self) -> bool:
        """It is when something was generated, unless the request was preempted since and is at its
        prompt again."""
        inference = self.inference
        asked = inference.sampling.prompt_logprobs is not None
        return inference.generated > 0 and (
            not asked or len(inference.prompt_logprobs) >= inference.prompt_tokens - 1
        )

    def _prompt(self) -> str:
        self._owed = False
        inference = self.inference
        asked = inference.sampling.prompt_logprobs is not None
        known = [None, *inference.prompt_logprobs, *inference.logprobs] if asked else []
        detokenizer = Detokenizer(self._service.tokenizer)
        texts = []
        for number, token in enumerate(inference.ids[: self._prompt_tokens]):
            if asked:
                self._unsent.append(Token(token, self._decoded, known[number]))
            texts.append(detokenizer.push([token]))
            self._decoded += len(texts[-1])
        texts.append(detokenizer.finish())
        self._decoded += len(texts[-1])
        return "".join(texts)


def segments(choices: Sequence[Choice]) -> Iterator[Segment | None]:
    """Of all choices, as they come, until all have ended; None where there is none before their
    next news. Raises ApiError when one of them fails."""
    unfinished = list(choices)
    while unfinished:
        for choice in unfinished:
            if (segment := choice.read()) is not None:
                yield segment
        unfinished = [choice for choice in unfinished if choice.finish is None]
        if unfinished:
            yield None
