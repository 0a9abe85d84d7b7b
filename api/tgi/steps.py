"""A generation token by token, as TGI's API returns it: each token with the text it adds, and what
ended the request. The stop text stays in the response."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from api.service import Service
from engine.inference import Inference
from text.tokenizer import Detokenizer

Finish = Literal["length", "eos_token", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class Step:
    index: int  # among the generated tokens, from 0
    token: int
    text: str  # what it adds to the answer; empty while its last character is incomplete
    special: bool  # its own text is no part of the answer
    finish: Finish | None  # set in the last one


class _Follower:
    """Reads the new tokens of one generation."""

    def __init__(self, service: Service, inference: Inference, stops: Sequence[str]) -> None:
        self.steps: list[Step] = []
        self.ended = False
        self._service = service
        self._inference = inference
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._detokenizer = Detokenizer(service.tokenizer)
        self._tail = ""
        self._last: Step | None = None  # held back until the request has ended

    def read(self) -> list[Step]:
        """Up to the token that completes a stop string, which ends the request."""
        inference, known = self._inference, len(self.steps)
        self.ended = inference.record is not None  # read before the ids: none follow an end
        for token in inference.ids[inference.prompt_tokens + known :]:
            if self._last is not None:
                break
            step = self._step(token)
            if step.finish is None:
                self.steps.append(step)
            else:
                self._last = step
        if self.ended and self._last is not None:
            self.steps.append(self._last)
        return self.steps[known:]

    def require_whole(self) -> None:
        """Of a request that has ended. Raises ApiError where its answer stays incomplete."""
        if self._last is None:
            self._service.outcome(self._inference)

    def _step(self, token: int) -> Step:
        index, special = len(self.steps), token in self._inference.end_ids
        text = "" if special else self._detokenizer.push([token])
        tail = self._tail + text
        finish: Finish | None = None
        if index + 1 == self._inference.max_tokens:
            finish = "length"
        elif special:
            finish = "eos_token"
        elif any(stop in tail for stop in self._stops):
            finish = "stop_sequence"
            self._service.manager.cancel(self._inference, "stop")
        self._tail = tail[-(self._longest - 1) :] if self._longest > 1 else ""
        if finish is not None:
            text += self._detokenizer.finish()
        return Step(index, token, text, special, finish)


def follow(service: Service, inference: Inference, stops: Sequence[str]) -> Iterator[Step | None]:
    """The generated tokens as they arrive, the last when the request has ended; None where there
    is none before its next news. Raises ApiError where an answer stays incomplete."""
    follower = _Follower(service, inference, stops)
    while not follower.ended:
        yield from follower.read()
        if not follower.ended:
            yield None
    follower.require_whole()


def to_the_end(
    service: Service, inferences: Sequence[Inference], stops: Sequence[str]
) -> list[list[Step]]:
    """All tokens of requests that have their `news` in common. Raises as `follow` does, as soon
    as one of them fails."""
    followers = [_Follower(service, inference, stops) for inference in inferences]
    unfinished = followers
    while unfinished:
        inferences[0].news.wait()
        inferences[0].news.clear()
        for follower in unfinished:
            follower.read()
            if follower.ended:
                follower.require_whole()
        unfinished = [follower for follower in unfinished if not follower.ended]
    return [follower.steps for follower in followers]
