"""Calls that generate, and how each is answered: whole, or while it is generated, as server-sent
events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from flask import Response, jsonify, request
from pydantic_core import to_json

from api.follow import Item, Reader, awaited, follow
from api.http.errors import ApiError, Shape, plain_shape
from api.http.writer import COMMENT, Updated
from api.openapi import Answer
from api.service import Service
from api.signals import Signals
from engine.inference import Inference

quoted = json.encoder.encode_basestring_ascii  # of one text the fastest
PLACE = "\ufdd0"  # of a text that is known later: a noncharacter


def event(data: Mapping[str, Any] | Answer) -> bytes:
    return b"data: " + to_json(data, ensure_ascii=True) + b"\n\n"


def around_text(data: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """What `event(data)` has before and after a text in the place of `PLACE`, encoded once."""
    before, after = event(data).split(quoted(PLACE).encode())
    return before, after


class Call(Protocol[Item]):
    """A valid call of any API: its requests to the queue, which share their `updated`, and what its
    response is made of."""

    @property
    def wanted(self) -> Signals: ...

    @property
    def choices(self) -> Sequence[Reader[Item]]: ...

    def whole(self, parts: Sequence[Item]) -> Any:
        """A JSON value, made of all that the choices have read."""

    def events(self) -> Iterator[bytes | None]:
        """Of a stream; None where there is none before the next update."""


def answer(service: Service, call: Call[Item], shape: Shape, *, stream: bool) -> Response:
    """Submits it, and answers with it whole or in a stream. Raises ApiError."""
    inferences = [choice.inference for choice in call.choices]
    service.submit(*inferences, asked=call.wanted)
    if stream:
        return event_stream(service, inferences, call.events(), shape)
    return jsonify(call.whole(service.wait(follow(call.choices), *inferences)))


def event_stream(
    service: Service,
    inferences: Sequence[Inference],
    events: Iterable[bytes | None],
    shape: Shape = plain_shape,
) -> Response:
    """The responses of submitted requests, which share their `updated`, as `events`, with None
    where there is nothing to send before the next update. Raises ApiError if one fails before the
    first token, so that the status is true; but not after `--stream-heartbeat`, when the head and
    a comment are sent to keep proxies from closing the stream. Cancels the requests when the client
    disconnects, before, while or instead of reading."""
    client, updated = request.environ.get("gunicorn.socket"), inferences[0].updated
    cancel = partial(service.cancel, *inferences)
    unwatch = service.departures.watch(client, cancel)
    guarded = _guarded(events, shape)
    silent_s = service.clock() - inferences[0].arrival_s  # it may have been pending in the intake
    if not updated.wait(max(0.0, service.config.stream_heartbeat - silent_s)):
        guarded = itertools.chain([COMMENT], guarded)
    else:
        for inference in inferences:
            if (record := inference.record) is not None and record.generated == 0:
                unwatch()
                cancel()
                service.outcome(inference)
    return stream_of(service, inferences, guarded, unwatch, cancel)


def stream_of(
    service: Service,
    sources: Sequence[Updated],
    events: Iterator[bytes | None],
    *closing: Callable[[], object],
) -> Response:
    """`events`, with None where there is nothing to send before the next update of a source.
    `closing` is called at the end, also where the client is gone."""
    client = request.environ.get("gunicorn.socket")
    if client is None:  # the server is not gunicorn
        body = awaited(events, sources[0].updated)
    else:  # which sends chunks to clients that accept them
        chunked = request.environ["SERVER_PROTOCOL"] != "HTTP/1.0"
        body = service.writer.serve(sources, client, events, chunked=chunked)
    response = Response(body, mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"  # proxies like nginx must not buffer it
    for call in closing:
        response.call_on_close(call)
    return response


def _guarded(events: Iterable[bytes | None], shape: Shape) -> Iterator[bytes | None]:
    """A response that fails after it has begun ends with an error event."""
    try:
        yield from events
    except ApiError as error:
        yield event(shape(error))
