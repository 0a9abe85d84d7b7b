"""Runs the lines of a batch through the endpoints, as if each had arrived on its own connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

from api.http.body import of_schema
from api.http.errors import ApiError, internal_error
from api.openai.answers import error_shape
from api.openai.choices import Segment
from api.openai.generation import Generation, Generations
from api.openai.schemas import ChatRequest, CompletionRequest
from api.service import Service
from deferred.entities import Usage
from deferred.worker import Answer, NotNowError
from engine.inference import Inference

LATER = (429, 503)  # failures that are not the line's fault
FAILED = 500


class Endpoints:
    """A deferred.worker.Runner."""

    def __init__(self, service: Service, generations: Generations) -> None:
        self._service = service
        self._make: Mapping[str, Callable[[dict[str, Any], float], Generation]] = {
            "/v1/completions": lambda body, arrival_s: generations.completion(
                of_schema(body, CompletionRequest), arrival_s
            ),
            "/v1/chat/completions": lambda body, arrival_s: generations.chat(
                of_schema(body, ChatRequest), arrival_s
            ),
        }

    def begin(
        self, owner: str, endpoint: str, body: bytes, deadline_s: float, updated: Event
    ) -> _Call | Answer:
        try:
            generation = self._make[endpoint](json.loads(body), self._service.clock())
            for inference in generation.inferences:
                inference.service_class, inference.deadline_s = "deferred", deadline_s
                inference.updated = updated
            self._service.submit_stored(owner, *generation.inferences, asked=generation.wanted)
        except ApiError as error:
            if error.status in LATER:
                raise NotNowError from error
            return _refusal(error)
        except Exception as error:
            return _refusal(internal_error(error))
        return _Call(self._service, generation)


class _Call:
    """A deferred.worker.Call."""

    def __init__(self, service: Service, generation: Generation) -> None:
        self._service = service
        self._generation = generation
        self._inferences = generation.inferences
        self._segments = generation.segments()
        self._parts: list[Segment] = []
        self._may_end_early = generation.may_end_early

    @property
    def inferences(self) -> Sequence[Inference]:
        return self._inferences

    def read(self) -> Answer | None:
        if not self._may_end_early and any(i.record is None for i in self._inferences):
            return None
        try:
            for segment in self._segments:
                if segment is None:
                    return None
                self._parts.append(segment)
            body = self._generation.whole(self._parts)
        except ApiError as error:
            self.cancel()
            if error.status != FAILED:  # cancelled, or the server ends
                raise NotNowError from error
            return _refusal(error)
        except Exception as error:
            self.cancel()
            return _refusal(internal_error(error))
        told = body["usage"]
        return Answer(
            200,
            dict(body),
            Usage(
                input_tokens=told["prompt_tokens"],
                cached_tokens=told["prompt_tokens_details"]["cached_tokens"],
                output_tokens=told["completion_tokens"],
            ),
        )

    def cancel(self) -> None:
        self._service.cancel(*self._inferences)


def _refusal(error: ApiError) -> Answer:
    return Answer(error.status, dict(error_shape(error)), Usage())
