"""Which path takes and answers what, for `/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from api.document import answers as answers
from api.jobs.batches import MOST_LISTED as MOST_BATCHES
from api.jobs.batches import BatchRequest
from api.jobs.files import MOST_LISTED as MOST_FILES
from api.jobs.files import PURPOSE
from api.jobs.store import ORDERS
from api.native import InferenceRequest
from api.openai.schemas import ChatRequest, CompletionRequest
from api.tgi.schemas import CompatRequest, GenerateRequest

Json = dict[str, Any]

BODY = (408, 413, 415)  # what can be wrong with any body
DONE = "[DONE]"
BUSY = (429, 503, 504)


@dataclass(frozen=True, slots=True)
class Operation:
    """`whole`: the answer, of a stream `events` tells each event's data; `media`: of an answer that
    is no JSON. `statuses`: with which it may be refused, in the shape `error`."""

    error: type[BaseModel]
    statuses: tuple[int, ...]
    whole: type[BaseModel] | None = None
    events: type[BaseModel] | None = None
    last: str | None = None  # data of a stream's last event that is no JSON
    media: str | None = None
    body: type[BaseModel] | None = None
    form: Json | None = None  # a multipart body
    query: Mapping[str, Json] = field(default_factory=dict)


def _plain(*statuses: int, **parts: Any) -> Operation:
    return Operation(answers.Error, (*statuses, 500), **parts)


def _openai(*statuses: int, **parts: Any) -> Operation:
    return Operation(answers.OpenAIError, (*statuses, 500), **parts)


def _tgi(*statuses: int, **parts: Any) -> Operation:
    return Operation(answers.TgiError, (*statuses, 424), **parts)


def _limit(most: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most}


_GENERATING = (400, *BODY, *BUSY)
_STORED = (400, 503)  # of the job store
_AFTER: Json = {"after": {"type": "string"}}
_UPLOAD: Json = {
    "type": "object",
    "properties": {
        "purpose": {"const": PURPOSE},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "required": ["purpose", "file"],
}

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/inference"): _plain(
        *_GENERATING,
        body=InferenceRequest,
        whole=answers.InferenceAnswer,
        events=answers.InferenceEvent,
    ),
    ("GET", "/health"): _plain(503, whole=answers.Health),
    ("GET", "/stats"): _plain(whole=answers.Stats),
    ("POST", "/stats/reset"): _plain(whole=answers.StatsReset),
    ("GET", "/stats/iterations"): _plain(whole=answers.Iterations),
    ("GET", "/metrics"): _plain(media="text/plain"),
    ("GET", "/v1/models"): _openai(503, whole=answers.ModelList),
    ("GET", "/v1/models/{name}"): _openai(404, 503, whole=answers.ModelCard),
    ("POST", "/v1/completions"): _openai(
        *_GENERATING,
        404,
        body=CompletionRequest,
        whole=answers.Completion,
        events=answers.CompletionEvent,
        last=DONE,
    ),
    ("POST", "/v1/chat/completions"): _openai(
        *_GENERATING,
        404,
        body=ChatRequest,
        whole=answers.ChatCompletion,
        events=answers.ChatEvent,
        last=DONE,
    ),
    ("POST", "/v1/files"): _openai(*_STORED, *BODY, form=_UPLOAD, whole=answers.StoredFile),
    ("GET", "/v1/files"): _openai(
        *_STORED,
        404,
        whole=answers.FilePage,
        query={
            **_AFTER,
            "limit": _limit(MOST_FILES),
            "order": {"enum": list(ORDERS)},
            "purpose": {"type": "string"},
        },
    ),
    ("GET", "/v1/files/{file_id}"): _openai(*_STORED, 404, whole=answers.StoredFile),
    ("DELETE", "/v1/files/{file_id}"): _openai(*_STORED, 404, whole=answers.DeletedFile),
    ("GET", "/v1/files/{file_id}/content"): _openai(
        *_STORED, 404, media="application/octet-stream"
    ),
    ("POST", "/v1/batches"): _openai(
        *_STORED, 404, *BODY, body=BatchRequest, whole=answers.StoredBatch
    ),
    ("GET", "/v1/batches"): _openai(
        *_STORED, 404, whole=answers.BatchPage, query={**_AFTER, "limit": _limit(MOST_BATCHES)}
    ),
    ("GET", "/v1/batches/{batch_id}"): _openai(*_STORED, 404, whole=answers.StoredBatch),
    ("POST", "/v1/batches/{batch_id}/cancel"): _openai(*_STORED, 404, whole=answers.StoredBatch),
    ("GET", "/"): _tgi(503, whole=answers.Health),
    ("POST", "/"): _tgi(
        422,
        *BODY,
        *BUSY,
        body=CompatRequest,
        whole=answers.GeneratedList,
        events=answers.StreamEvent,
    ),
    ("POST", "/generate"): _tgi(422, *BODY, *BUSY, body=GenerateRequest, whole=answers.Generated),
    ("POST", "/generate_stream"): _tgi(
        422, *BODY, *BUSY, body=GenerateRequest, events=answers.StreamEvent
    ),
    ("POST", "/tokenize"): _tgi(422, *BODY, body=GenerateRequest, whole=answers.Pieces),
    ("GET", "/info"): _tgi(whole=answers.Info),
}
