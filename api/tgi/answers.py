"""The responses of TGI's API, as types that follow text-generation-inference's `router/src/lib.rs`,
and how they are made: generated text with details, errors, times in headers. The code is checked
against the types, and `/openapi.json` is generated from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NotRequired, cast

from typing_extensions import TypedDict

from api.follow import Follower, NewToken, follow
from api.http.errors import ApiError
from api.openapi import documented
from api.service import Service
from api.stream import event
from api.tgi.schemas import Parameters
from engine.inference import Inference
from text.stops import StopFinder, Stops
from text.tokenizer import Tokenizer

STATUS = {400: 422, 500: 424}  # of an error, where TGI's is another one than ours
KINDS = {
    401: "unauthorized",
    403: "forbidden",
    408: "timeout",
    424: "generation",
    429: "overloaded",
    499: "dropped",
    503: "unavailable",
    504: "timeout",
}
PREFIXES = {
    "generation": "Request failed during generation: ",
    "overloaded": "Model is overloaded: ",
    "validation": "Input validation error: ",
}

Finish = Literal["length", "eos_token", "stop_sequence"]


class TgiError(TypedDict):
    error: str
    error_type: str


class TopToken(TypedDict):
    id: int
    text: str
    logprob: float
    special: bool


class PromptToken(TypedDict):
    id: int
    text: str
    logprob: float | None


class Ended(TypedDict):
    finish_reason: Finish
    generated_tokens: int
    seed: int | None


class GeneratedSequence(Ended):
    prefill: list[PromptToken]
    tokens: list[TopToken]
    top_tokens: NotRequired[list[list[TopToken]]]


class OtherSequence(GeneratedSequence):
    generated_text: str


class Details(GeneratedSequence):
    best_of_sequences: NotRequired[list[OtherSequence]]


class Generated(TypedDict):
    generated_text: str
    details: NotRequired[Details]


class StreamDetails(Ended):
    input_length: int


class StreamToken(TypedDict):
    index: int
    token: TopToken
    top_tokens: NotRequired[list[TopToken]]
    generated_text: str | None
    details: StreamDetails | None


tgi_errors = partial(documented, TgiError, 424)


def shape(error: ApiError) -> TgiError:
    """TGI's error object; its clients distinguish errors by `error_type`."""
    kind = KINDS.get(STATUS.get(error.status, error.status), "validation")
    return {"error": PREFIXES.get(kind, "") + error.message, "error_type": kind}


class Steps:
    """An api.follow.Reader of one generation, token by token, up to the one that completes a stop
    string, which ends the request. The stop text stays in the response. `before`: that, too."""

    def __init__(
        self, service: Service, inference: Inference, stops: Stops, before: str = ""
    ) -> None:
        self.inference = inference
        self.all: list[NewToken] = []  # that were read
        self.finish: Finish | None = None  # once the last one was read
        self.ended = False
        self._before = before
        self._service = service
        self._finder = StopFinder(stops)
        self._follower = Follower(inference, service.tokenizer, inference.prompt_tokens)
        # held back until the request has ended
        self._last: tuple[NewToken, Finish] | None = None

    @property
    def text(self) -> str:
        return self._before + "".join(token.text for token in self.all)

    @property
    def mean_logprob(self) -> float:
        logprobs = self.inference.logprobs[: len(self.all)]
        return sum(one.logprob for one in logprobs) / len(logprobs)

    def read(self) -> Iterator[NewToken]:
        new = self._follower.new()
        while self._last is None and (token := next(new, None)) is not None:
            self._finder.push(token.text)
            if (finish := self._finish_with(token)) is not None:
                token.text += self._follower.rest()
                self._last = token, finish
                break
            self.all.append(token)
            yield token
        self.ended = self._follower.ended
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


@dataclass(frozen=True, slots=True)
class TgiGeneration:
    """An api.stream.Call. `groups`: of each text its generations, of which the best one is the
    response. `as_list`: as is that for one text."""

    wanted: Parameters
    groups: Sequence[list[Steps]]
    tokenizer: Tokenizer
    as_list: bool

    @property
    def choices(self) -> list[Steps]:
        return [steps for group in self.groups for steps in group]

    def whole(self, parts: Sequence[NewToken]) -> Generated | list[Generated]:
        for group in self.groups:
            if len(group) > 1:
                group.sort(key=lambda steps: steps.mean_logprob, reverse=True)
        response = list(map(self._generated, self.groups))
        return response if self.as_list else response[0]

    def events(self) -> Iterator[bytes | None]:
        (steps,) = self.choices
        for token in follow([steps]):
            yield None if token is None else event(self._stream_token(token, steps))

    def _generated(self, group: Sequence[Steps]) -> Generated:
        best, *others = group
        response: Generated = {"generated_text": best.text}
        if self.wanted.details or self.wanted.decoder_input_details:
            details = cast(Details, self._sequence(best))
            if others:
                details["best_of_sequences"] = [
                    {"generated_text": other.text, **self._sequence(other)} for other in others
                ]
            response["details"] = details
        return response

    def _sequence(self, steps: Steps) -> GeneratedSequence:
        prefill = self._prefill(steps.inference) if self.wanted.decoder_input_details else []
        tokens = [self._token(token, steps.inference) for token in steps.all]
        response = cast(GeneratedSequence, {**_ended(steps), "prefill": prefill, "tokens": tokens})
        if self.wanted.top_n_tokens:
            response["top_tokens"] = [self._top(token, steps.inference) for token in steps.all]
        return response

    def _stream_token(self, token: NewToken, steps: Steps) -> StreamToken:
        """Of the newest token."""
        response: StreamToken = {
            "index": len(steps.all),
            "token": self._token(token, steps.inference),
            "generated_text": None,
            "details": None,
        }
        if self.wanted.top_n_tokens:
            response["top_tokens"] = self._top(token, steps.inference)
        if steps.finish is not None:
            response["generated_text"] = steps.text
            if self.wanted.details:
                input_length = steps.inference.prompt_tokens
                response["details"] = {**_ended(steps), "input_length": input_length}
        return response

    def _token(self, token: NewToken, inference: Inference) -> TopToken:
        return {
            "id": token.id,
            "text": token.text + (self._text(token.id) if token.is_end else ""),
            "logprob": inference.logprobs[token.index].logprob,
            "special": token.is_end,
        }

    def _top(self, token: NewToken, inference: Inference) -> list[TopToken]:
        ends = self.tokenizer.end_ids
        return [
            {"id": other, "text": self._text(other), "logprob": logprob, "special": other in ends}
            for other, logprob in inference.logprobs[token.index].top
        ]

    def _prefill(self, inference: Inference) -> list[PromptToken]:
        """The prompt's tokens; nothing comes before the first, so it has no logprob."""
        ids = inference.ids[: inference.prompt_tokens]
        logprobs = [None, *(one.logprob for one in inference.prompt_logprobs)]
        return [
            {"id": token, "text": self._text(token), "logprob": logprob}
            for token, logprob in zip(ids, logprobs, strict=True)
        ]

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")


def _ended(steps: Steps) -> Ended:
    assert steps.finish is not None
    sampling = steps.inference.sampling
    return {
        "finish_reason": steps.finish,
        "generated_tokens": len(steps.all),
        "seed": sampling.seed if sampling.temperature > 0 else None,
    }


def timing(
    answers: Sequence[Steps], arrival_s: float, submitted_s: float, end_s: float
) -> dict[str, str]:
    """Of the generation that was admitted last; one request has only one, unless its inputs are
    a list."""
    inferences = [answer.inference for answer in answers]
    admitted_s = max(inference.admitted_s or submitted_s for inference in inferences)
    spans_s = {
        "total-time": end_s - arrival_s,
        "validation-time": submitted_s - arrival_s,
        "queue-time": admitted_s - submitted_s,
        "inference-time": end_s - admitted_s,
        "time-per-token": (end_s - admitted_s) / max(len(answer.all) for answer in answers),
    }
    counts = {
        "prompt-tokens": sum(inference.prompt_tokens for inference in inferences),
        "generated-tokens": sum(len(answer.all) for answer in answers),
    }
    drafts = {
        "accepted-drafts": sum(inference.accepted_drafts for inference in inferences),
        "rejected-drafts": sum(inference.rejected_drafts for inference in inferences),
    }
    if any(drafts.values()):
        counts |= drafts
    spans_ms = {name: max(0, int(span_s * 1000)) for name, span_s in spans_s.items()}
    headers = {f"x-{name}": str(number) for name, number in (spans_ms | counts).items()}
    return {"x-compute-time": f"{end_s - arrival_s:.6f}", **headers}
