"""A generation followed token by token, as TGI's API tells it: each token with the text it adds,
and what ended the request. The stop text stays in the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from api.service import Service
from inference import Inference
from text import Detokenizer

Finish = Literal["length", "eos_token", "stop_sequence"]


@dataclass(frozen=True, slots=True)
class Step:
    index: int  # among the generated tokens, from 0
    token: int
    text: str  # what it adds to the answer; empty while its last character is incomplete
    special: bool  # its own text is no part of the answer
    finish: Finish | None  # set in the last one


def follow(service: Service, inference: Inference, stops: Sequence[str]) -> Iterator[Step]:
    """The generated tokens as they arrive, up to the one that completes a stop string; that one
    ends the request. The last is given when the request has ended. Raises ApiError where an
    answer stays incomplete."""
    detokenizer, tail = Detokenizer(service.tokenizer), ""
    longest = max(map(len, stops), default=0)
    index = 0
    while True:
        inference.news.wait()
        inference.news.clear()
        ended = inference.record is not None  # read before the ids: none follow an end
        for token in inference.ids[inference.prompt_tokens + index :]:
            special = token in inference.end_ids
            text = "" if special else detokenizer.push([token])
            tail += text
            finish: Finish | None = None
            if index + 1 == inference.max_tokens:
                finish = "length"
            elif special:
                finish = "eos_token"
            elif any(stop in tail for stop in stops):
                finish = "stop_sequence"
                service.manager.cancel(inference, "stop")
            tail = tail[-(longest - 1) :] if longest > 1 else ""
            if finish is not None:
                text += detokenizer.finish()
                inference.event.wait()
            yield Step(index, token, text, special, finish)
            if finish is not None:
                return
            index += 1
        if ended:
            service.outcome(inference)
            return


def to_the_end(service: Service, inference: Inference, stops: Sequence[str]) -> list[Step]:
    """All of it at once. Raises as `follow` does."""
    if not stops:  # nothing has to be seen before the end: one wake instead of one a token
        inference.event.wait()
    return list(follow(service, inference, stops))
