"""A generation token by token, as TGI's API returns it: each token with the text it adds, and what
ended the request. The stop text stays in the response."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from api.follow import Follower, NewToken
from api.service import Service
from engine.inference import Inference
from text.stops import StopFinder, Stops

Finish = Literal["length", "eos_token", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class TokenStep:
    index: int  # among the generated tokens, from 0
    token: int
    text: str  # what it adds to the answer; empty while its last character is incomplete
    special: bool  # its own text is no part of the answer
    finish: Finish | None  # set in the last one


class Steps:
    """An api.follow.Reader of one generation, up to the token that completes a stop string, which
    ends the request."""

    def __init__(self, service: Service, inference: Inference, stops: Stops) -> None:
        self.inference = inference
        self.all: list[TokenStep] = []  # that were read
        self._service = service
        self._finder = StopFinder(stops)
        self._follower = Follower(inference, service.tokenizer, inference.prompt_tokens)
        self._last: TokenStep | None = None  # held back until the request has ended

    @property
    def ended(self) -> bool:
        return self._follower.ended

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.all)

    @property
    def mean_logprob(self) -> float:
        logprobs = self.inference.logprobs[: len(self.all)]
        return sum(found.logprob for found in logprobs) / len(logprobs)

    def read(self) -> Iterator[TokenStep]:
        new = self._follower.new()
        while self._last is None and (token := next(new, None)) is not None:
            step = self._step(token)
            if step.finish is None:
                yield self._kept(step)
            else:
                self._last = step
        if self.ended and self._last is None:
            self._service.outcome(self.inference)
        elif self.ended and self._last is not None:
            yield self._kept(self._last)

    def _kept(self, step: TokenStep) -> TokenStep:
        self.all.append(step)
        return step

    def _step(self, token: NewToken) -> TokenStep:
        text = token.text
        self._finder.push(text)
        finish: Finish | None = None
        if token.index + 1 == self.inference.max_tokens:
            finish = "length"
        elif token.is_end:
            finish = "eos_token"
        elif self._finder.found:
            finish = "stop_sequence"
            self._service.manager.cancel(self.inference, "stop")
        if finish is not None:
            text += self._follower.rest()
        return TokenStep(token.index, token.id, text, token.is_end, finish)
