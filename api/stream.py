"""Answers that leave while they are generated: text pieces, and server-sent events."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Response

from api.errors import ApiError, Shape, plain_shape
from api.service import Service
from inference import Inference
from text import Detokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    text: str  # empty while its last character is incomplete
    tokens: int


def pieces(inference: Inference, detokenizer: Detokenizer) -> Iterator[Piece]:
    """What was generated since the last piece, until the request has ended."""
    sent = inference.prompt_tokens
    while True:
        inference.news.wait()
        inference.news.clear()
        ended = inference.record is not None  # read before the ids: none follow an end
        ids = inference.ids[sent:]
        sent += len(ids)
        text = detokenizer.push(ids) + (detokenizer.finish() if ended else "")
        if ids or text:
            yield Piece(text, len(ids))
        if ended:
            return


# made once: json.dumps makes an encoder in every call that names its separators
_encode = json.JSONEncoder(separators=(",", ":")).encode


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + _encode(data).encode() + b"\n\n"


def event_stream(
    service: Service,
    inferences: Sequence[Inference],
    client: socket.socket | None,
    events: Iterable[bytes],
    shape: Shape = plain_shape,
) -> Response:
    """The answers of submitted requests, which have their `news` in common, as `events`. Raises
    ApiError when one fails before the first token, so that even then the status is true. Cancels
    the requests when the client leaves, before, during or instead of reading."""
    unwatch = service.watch(client, *inferences)

    def close() -> None:
        unwatch()
        service.cancel(*inferences)

    inferences[0].news.wait()
    for inference in inferences:
        if inference.record is not None and inference.generated == 0:
            close()
            service.outcome(inference)
    response = Response(_guarded(events, shape), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"  # proxies of nginx's kind must not hold it back
    response.call_on_close(close)
    return response


def _guarded(events: Iterable[bytes], shape: Shape) -> Iterator[bytes]:
    """An answer that fails after it has begun ends with an error event."""
    try:
        yield from events
    except ApiError as error:
        yield event(shape(error))
