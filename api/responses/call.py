"""A valid call of `/v1/responses`, and its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from api.follow import follow
from api.openai.generation import Generation
from api.openai.shapes import ChatChunk
from api.responses.output import Output
from api.responses.schemas import ResponseRequest
from api.responses.shapes import Event, InputItem


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """`own`: the input, without what `previous`, the number of a stored response, has before."""

    owner: str
    wanted: ResponseRequest
    generation: Generation
    output: Output
    own: list[InputItem]
    previous: int | None

    @property
    def id(self) -> str:
        return self.output.response["id"]

    @property
    def stores(self) -> bool:
        return self.output.response["store"]

    def read(self) -> Iterator[Event | None]:
        """All events but the first two and the last; None where there is none before the next
        update. Raises ApiError."""
        for segment in follow(self.generation.choices):
            if segment is None:
                yield None
                continue
            for chunk in self.generation.form.chunks(segment):
                yield from self.output.add(cast(ChatChunk, chunk))
        yield from self.output.end(self.generation.usage())
