"""Responses as lines of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.http.errors import ApiError
from api.jobs.lines import Line
from api.jobs.store import explain
from api.responses.making import Maker
from api.responses.stored.kept import Kept
from deferred.errors import StoreError


def response_line(
    maker: Maker, kept: Kept, owner: str, body: dict[str, Any], arrival_s: float
) -> Line:
    """A line's response is in the batch's output, so it is kept for later calls only where the line
    asks for it."""
    if body.get("background"):
        raise ApiError(
            400, "field 'background' must be false or left out in a batch", param="background"
        )
    call = maker.make(owner, body, arrival_s, stores=False)

    def answers() -> Iterator[dict[str, Any] | None]:
        for event in call.read():
            if event is None:
                yield None
        if call.stores:
            try:
                kept.create(call)
            except StoreError as error:
                raise explain(error) from error
        yield dict(call.output.response)

    return Line(call.generation, answers())
