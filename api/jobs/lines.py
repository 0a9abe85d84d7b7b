"""Runs the lines of a batch through the endpoints, as if each had arrived on its own connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from api.follow import follow
from api.http.errors import CLIENT_GONE, ApiError, internal_error
from api.openai.choices import Segment
from api.openai.errors import error_shape
from api.openai.generation import Generation, Generations
from api.service import Service
from deferred.entities import BatchUsage
from deferred.worker import LineAnswer, NotNowError
from engine.inference import Inference

LATER = (429, 503)  # refusals that are not the line's fault
ENDED = (CLIENT_GONE, 503, 504)  # a generation that did not fail: cancelled, or the server ends

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A valid line, a deferred.worker.LineCall. `answers`: None before each update that the answer
    needs, then the answer. Raises ApiError."""

    service: Service
    generation: Generation
    answers: Iterator[Json | None]

    @property
    def inferences(self) -> Sequence[Inference]:
        return self.generation.inferences

    def read(self) -> LineAnswer | None:
        generation = self.generation
        if not generation.may_end_early and any(one.record is None for one in self.inferences):
            return None
        try:
            body = next(self.answers)
        except ApiError as error:
            self.cancel()
            if error.status in ENDED:
                raise NotNowError from error
            return _refusal(error)
        except Exception as error:
            self.cancel()
            return _refusal(internal_error(error))
        if body is None:
            return None
        usage = generation.usage()
        return LineAnswer(
            200,
            body,
            BatchUsage(
                input_tokens=usage["prompt_tokens"],
                cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
                output_tokens=usage["completion_tokens"],
            ),
        )

    def cancel(self) -> None:
        self.service.cancel(*self.inferences)


Make = Callable[[str, Json, float], Line]  # of an owner, a body, and its time of arrival


class Endpoints:
    """`begin` is a deferred.worker.Begin. `make`: is complete before lines are run."""

    def __init__(self, service: Service, generations: Generations) -> None:
        self._service = service
        self.make: dict[str, Make] = {
            "/v1/completions": lambda _, *call: self._line(generations.completion(*call)),
            "/v1/chat/completions": lambda _, *call: self._line(generations.chat(*call)),
        }

    def begin(
        self, owner: str, endpoint: str, body: bytes, deadline_s: float, updated: Event
    ) -> Line | LineAnswer:
        try:
            line = self.make[endpoint](owner, json.loads(body), self._service.clock())
            generation = line.generation
            for inference in generation.inferences:
                inference.service_class, inference.deadline_s = "deferred", deadline_s
                inference.updated = updated
            self._service.submit(*generation.inferences, asked=generation.wanted, stored_for=owner)
        except ApiError as error:
            if error.status in LATER:
                raise NotNowError from error
            return _refusal(error)
        except Exception as error:
            return _refusal(internal_error(error))
        return line

    def _line(self, generation: Generation) -> Line:
        """Of a completion or a chat."""

        def answers() -> Iterator[Json | None]:
            parts: list[Segment] = []
            for segment in follow(generation.choices):
                if segment is None:
                    yield None
                else:
                    parts.append(segment)
            yield dict(generation.whole(parts))

        return Line(self._service, generation, answers())


def _refusal(error: ApiError) -> LineAnswer:
    return LineAnswer(error.status, dict(error_shape(error)), BatchUsage())
