"""The live page: `/watch`, its files, its events, its trace, and the requests of its buttons.

The page and its files need no key, since a browser sends none for a typed address. They contain no
data of this server; everything that does requires the key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from flask import Blueprint, Response, g, jsonify, request, send_from_directory
from pydantic import BaseModel, ConfigDict, Field

from api.http.body import read_body
from api.http.errors import ApiError
from api.limits import Count, at_most
from api.openapi import BODY, Answer, plain_errors, respond
from api.service import Service
from engine.inference import Inference
from seams import Sampling
from text.tokenizer import Detokenizer
from watch.frames import Frame, Hello
from watch.hub import FullError, Hub
from watch.trace import Trace, chrome, tracks

PAGE = Path(__file__).parent.parent / "watch" / "page"
# another server that the address of the page names, as watch/page/servers.js reads it
SERVER = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?/?", re.IGNORECASE | re.ASCII)
MOST_PLAYED = 200  # requests that one call sends,
MOST_PLAY_S = 10.0  # within this time
TRACED_EVENTS = 2**13


class PlayedRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: str = Field(min_length=1)
    num_tokens: Count
    after_s: float = Field(0.0, ge=0, le=MOST_PLAY_S)


class PlayRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    requests: Annotated[
        list[Annotated[PlayedRequest, at_most(len(PlayedRequest.model_fields))]],
        Field(
            fail_fast=True,
            min_length=1,
            max_length=MOST_PLAYED,
            description=f"an array of 1 to {MOST_PLAYED} objects with prompt, num_tokens and "
            f"optionally after_s, from 0 to {MOST_PLAY_S:g}",
        ),
    ]


class PlayAnswer(Answer):
    requests: list[int]  # that were accepted
    refused: int  # since the queue was full


class TextAnswer(Answer):
    prompt: str
    answer: str  # so far


def make_blueprint(service: Service) -> Blueprint:
    blueprint = Blueprint("watch", __name__)
    manager = service.manager

    hello = partial(_hello, service)
    hub = Hub(
        manager.history,
        hello,
        lambda: service.stats.summary(service.clock(), manager),
        service.clock,
        lambda: manager.unavailable is not None and not any(manager.counts.values()),
        service.config.watch_viewers,
    )

    @blueprint.get("/watch")
    @plain_errors(media="text/html")
    def page() -> Response:
        named = request.args.get("with", "").split(",")
        return _file("index.html", [server for server in named if SERVER.fullmatch(server)])

    @blueprint.get("/watch/page/<path:name>")
    @plain_errors(404, media="text/html")
    def file(name: str) -> Response:
        return _file(name)

    @blueprint.get("/watch/events")
    @plain_errors(503, events=Hello | Frame)
    def events() -> Response:
        service.require_ready()
        return _events(service, hub)

    @blueprint.get("/watch/text/<int:number>")
    @plain_errors(403, 404, whole=TextAnswer)
    def text(number: int) -> Response:
        if service.texts is None:
            raise ApiError(403, "this server shows no texts (--watch-text)")
        found = service.texts.get(number)
        if found is None:
            raise ApiError(404, f"the text of request {number} is not stored")
        ids, split = list(found.ids), found.prompt_tokens
        prompt, answer = (_decoded(service, some) for some in (ids[:split], ids[split:]))
        return respond(TextAnswer(prompt=prompt, answer=answer))

    @blueprint.get("/watch/trace")
    @plain_errors(503, whole=Trace)
    def trace() -> Response:
        service.require_ready()
        response = jsonify(chrome([tracks(hello(), hub.backlog(TRACED_EVENTS))]))
        response.headers["Content-Disposition"] = "attachment; filename=effective-batching.json"
        return response

    @blueprint.post("/watch/play")
    @plain_errors(400, *BODY, 503, body=PlayRequest, whole=PlayAnswer)
    def play() -> Response:
        """Sends requests of the page, since a browser opens no more than six connections."""
        wanted = read_body(request, PlayRequest, service.config.max_body_bytes)
        service.require_ready()
        return respond(_play(service, wanted.requests))

    return blueprint


def _hello(service: Service) -> Hello:
    config, memory, description = service.config, service.manager.memory, service.describe()
    return {
        "mode": description["mode"],
        "policy": description["policy"],
        "model": (description["model"] or {}).get("name", config.model),
        "slots": 1 if config.mode == "nobatch" else config.max_batch_size,
        "blocks": memory.num_blocks,
        "block_tokens": memory.block_tokens,
        "text": config.watch_text,
        "chat_template": not service.template.is_plain,
    }


def _file(name: str, servers: Sequence[str] = ()) -> Response:
    """The page may contact these servers and its own. No other page may show it in a frame, where a
    user could be made to agree to what is not seen."""
    response = send_from_directory(PAGE, name, max_age=0)
    allowed = " ".join(["'self'", *servers])
    response.headers["Content-Security-Policy"] = (
        f"default-src 'self'; connect-src {allowed}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return response


def _events(service: Service, hub: Hub) -> Response:
    """A stream of frames, until its viewer leaves."""
    client = request.environ.get("gunicorn.socket")
    try:
        viewer = hub.join(client)
    except FullError:
        raise ApiError(
            503,
            f"the limit of {hub.most_viewers} viewers is reached (--watch-viewers)",
            {"Retry-After": "5"},
        ) from None

    response = Response(iter(viewer), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    unwatch = service.departures.watch(client, viewer.drop)

    def close() -> None:
        unwatch()
        hub.leave(viewer)

    response.call_on_close(close)
    return response


def _play(service: Service, requests: Sequence[PlayedRequest]) -> PlayAnswer:
    taken: list[int] = []
    refused, start_s = 0, service.clock()
    for one in sorted(requests, key=lambda one: one.after_s):
        time.sleep(max(0.0, start_s + one.after_s - service.clock()))
        inference = Inference(
            service.encode("prompt", [one.prompt])[0],
            one.num_tokens,
            Sampling(temperature=0.0),
            service.clock(),
        )
        try:
            service.submit(inference)
        except ApiError as error:
            if error.status != 429:
                raise
            refused += 1
        else:
            taken.append(inference.id)
    g.pop("inferences", None)  # they continue: the log must not count them as cancelled
    return PlayAnswer(requests=taken, refused=refused)


def _decoded(service: Service, ids: list[int]) -> str:
    detokenizer = Detokenizer(service.tokenizer)
    return detokenizer.push(ids) + detokenizer.finish()
