"""A generation token by token, as TGI's API returns it: each token with the text it adds, and what
ended the request. The stop text stays in the response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from api.follow import Follower, NewToken
from api.service import Service
from engine.inference import Inference
from text.stops import StopFinder, Stops

Finish = Literal["length", "eos_token", "stop_sequence"]


class Steps:
    """An api.follow.Reader of one generation, up to the token that completes a stop string, which
    ends the request."""

    def __init__(self, service: Service, inference: Inference, stops: Stops) -> None:
        self.inference = inference
        self.all: list[NewToken] = []  # that were read
        self.finish: Finish | None = None  # once the last one was read
        self._service = service
        self._finder = StopFinder(stops)
        self._follower = Follower(inference, service.tokenizer, inference.prompt_tokens)
        # held back until the request has ended
        self._last: tuple[NewToken, Finish] | None = None

    @property
    def ended(self) -> bool:
        return self._follower.ended

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.all)

    @property
    def mean_logprob(self) -> float:
        logprobs = self.inference.logprobs[: len(self.all)]
        return sum(found.logprob for found in logprobs) / len(logprobs)

    def read(self) -> Iterator[NewToken]:
        new = self._follower.new()
        while self._last is None and (token := next(new, None)) is not None:
            self._finder.push(token.text)
            if (finish := self._finish_with(token)) is None:
                self.all.append(token)
                yield token
            else:
                token.text += self._follower.rest()
                self._last = token, finish
        if not self.ended:
            return
        if self._last is None:  # it has failed, or its client is gone
            self._service.outcome(self.inference)
            return
        token, self.finish = self._last
        self.all.append(token)
        yield token

    def _finish_with(self, token: NewToken) -> Finish | None:
        if token.index + 1 == self.inference.max_tokens:
            return "length"
        if token.is_end:
            return "eos_token"
        if self._finder.found:
            self._service.manager.cancel(self.inference, "stop")
            return "stop_sequence"
        return None
