"""Responses as lines of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.http.errors import ApiError
from api.jobs.lines import Line
from api.jobs.store import explain
from api.responses.call import Call
from api.responses.making import Maker
from api.responses.stored.kept import Kept
from deferred.errors import StoreError


class ResponseLines:
    """An `api.jobs.lines.Make`. A line's response is in the batch's output, so it is kept for later
    calls only where the line asks for it."""

    def __init__(self, maker: Maker, kept: Kept) -> None:
        self._maker = maker
        self._kept = kept

    def __call__(self, owner: str, body: dict[str, Any], arrival_s: float) -> Line:
        if body.get("background"):
            raise ApiError(
                400,
                "field 'background' must be false or left out in a batch",
                param="background",
            )
        call = self._maker.make(owner, body, arrival_s, stores=False)
        return Line(call.generation, self._answers(call))

    def _answers(self, call: Call) -> Iterator[dict[str, Any] | None]:
        for event in call.read():
            if event is None:
                yield None
        if call.stores:
            try:
                self._kept.create(call)
            except StoreError as error:
                raise explain(error) from error
        yield dict(call.output.response)
