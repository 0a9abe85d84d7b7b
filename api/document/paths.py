"""The request and the responses of each path, for `/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.http.errors import Error
from api.jobs.batches import MOST_LISTED as MOST_BATCHES
from api.jobs.batches import BatchRequest
from api.jobs.files import MOST_LISTED as MOST_FILES
from api.jobs.files import PURPOSE
from api.jobs.shapes import DeletedFile, ListPage, StoredBatch, StoredFile
from api.jobs.store import ORDERS
from api.native import (
    InferenceAnswer,
    InferenceEnd,
    InferencePiece,
    InferenceRequest,
    StatsAnswer,
    StatsReset,
)
from api.openai.fields.schemas import ChatRequest, CompletionRequest
from api.openai.shapes import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    ModelCard,
    ModelList,
    OpenAIError,
)
from api.responses.routes import MOST_LISTED as MOST_ITEMS
from api.responses.schemas import ResponseRequest
from api.responses.shapes import (
    DeletedResponse,
    Event,
    GeneratedResponse,
    InputItems,
    InputTokens,
)
from api.service import Health
from api.tgi.schemas import CompatRequest, GenerateRequest
from api.tgi.shapes import Generated, Info, StreamToken, TgiError
from api.tgi.tokens import (
    ChatPieces,
    DetokenizeRequest,
    Piece,
    Prompt,
    TokenizeChat,
    TokenizeText,
    Tokens,
)
from api.watch import FORMATS, TRACE_TYPE, PlayAnswer, PlayRequest, TextAnswer
from telemetry.figures import Iterations
from watch.frames import Frame, Hello

Json = dict[str, Any]

BODY = (408, 413, 415)  # what can be wrong with any body
DONE = "[DONE]"
BUSY = (429, 503, 504)


@dataclass(frozen=True, slots=True)
class Operation:
    """`whole`: the type of a response; `events`: of each event's data in a stream; `media`: the
    media type of a response that is not JSON. `statuses`: of refusals, whose type is `error`."""

    error: Any
    statuses: tuple[int, ...]
    whole: Any = None
    events: Any = None
    last: str | None = None  # data of a stream's last event that is no JSON
    media: str | None = None
    body: Any = None
    form: Json | None = None  # a multipart body
    query: Mapping[str, Json] = field(default_factory=dict)


def _plain(*statuses: int, **parts: Any) -> Operation:
    return Operation(Error, (*statuses, 500), **parts)


def _openai(*statuses: int, **parts: Any) -> Operation:
    return Operation(OpenAIError, (*statuses, 500), **parts)


def _tgi(*statuses: int, **parts: Any) -> Operation:
    return Operation(TgiError, (*statuses, 424), **parts)


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
        404,
        *_GENERATING,
        body=InferenceRequest,
        whole=InferenceAnswer,
        events=InferencePiece | InferenceEnd | Error,
    ),
    ("GET", "/health"): _plain(503, whole=Health),
    ("GET", "/stats"): _plain(whole=StatsAnswer),
    ("POST", "/stats/reset"): _plain(whole=StatsReset),
    ("GET", "/stats/iterations"): _plain(whole=Iterations),
    ("GET", "/metrics"): _plain(media="text/plain"),
    ("GET", "/watch"): _plain(media="text/html"),
    ("GET", "/watch/page/{name}"): _plain(404, media="text/html"),
    ("GET", "/watch/events"): _plain(503, events=Hello | Frame),
    ("GET", "/watch/text/{number}"): _plain(403, 404, whole=TextAnswer),
    ("GET", "/watch/trace"): _plain(
        400, 503, media=TRACE_TYPE, query={"format": {"enum": list(FORMATS)}}
    ),
    ("POST", "/watch/play"): _plain(400, *BODY, 503, body=PlayRequest, whole=PlayAnswer),
    ("GET", "/v1/models"): _openai(503, whole=ModelList),
    ("GET", "/v1/models/{name}"): _openai(404, 503, whole=ModelCard),
    ("POST", "/v1/completions"): _openai(
        *_GENERATING,
        404,
        body=CompletionRequest,
        whole=Completion,
        events=CompletionChunk | OpenAIError,
        last=DONE,
    ),
    ("POST", "/v1/chat/completions"): _openai(
        *_GENERATING,
        404,
        body=ChatRequest,
        whole=ChatCompletion,
        events=ChatChunk | OpenAIError,
        last=DONE,
    ),
    ("POST", "/v1/responses"): _openai(
        *_GENERATING,
        404,
        body=ResponseRequest,
        whole=GeneratedResponse,
        events=Event | OpenAIError,
    ),
    ("POST", "/v1/responses/input_tokens"): _openai(
        *_GENERATING, 404, body=ResponseRequest, whole=InputTokens
    ),
    ("POST", "/v1/responses/compact"): _openai(404),
    ("GET", "/v1/responses/{response_id}"): _openai(
        *_STORED,
        404,
        whole=GeneratedResponse,
        events=Event | OpenAIError,
        query={
            "stream": {"enum": ["true", "false"]},
            "starting_after": {"type": "integer", "minimum": 0},
        },
    ),
    ("DELETE", "/v1/responses/{response_id}"): _openai(*_STORED, 404, whole=DeletedResponse),
    ("POST", "/v1/responses/{response_id}/cancel"): _openai(*_STORED, 404, whole=GeneratedResponse),
    ("GET", "/v1/responses/{response_id}/input_items"): _openai(
        *_STORED,
        404,
        whole=InputItems,
        query={**_AFTER, "limit": _limit(MOST_ITEMS), "order": {"enum": list(ORDERS)}},
    ),
    ("POST", "/v1/files"): _openai(*_STORED, 429, *BODY, form=_UPLOAD, whole=StoredFile),
    ("GET", "/v1/files"): _openai(
        *_STORED,
        404,
        whole=ListPage[StoredFile],
        query={
            **_AFTER,
            "limit": _limit(MOST_FILES),
            "order": {"enum": list(ORDERS)},
            "purpose": {"type": "string"},
        },
    ),
    ("GET", "/v1/files/{file_id}"): _openai(*_STORED, 404, whole=StoredFile),
    ("DELETE", "/v1/files/{file_id}"): _openai(*_STORED, 404, whole=DeletedFile),
    ("GET", "/v1/files/{file_id}/content"): _openai(
        *_STORED, 404, 429, media="application/octet-stream"
    ),
    ("POST", "/v1/batches"): _openai(*_STORED, 404, *BODY, body=BatchRequest, whole=StoredBatch),
    ("GET", "/v1/batches"): _openai(
        *_STORED, 404, whole=ListPage[StoredBatch], query={**_AFTER, "limit": _limit(MOST_BATCHES)}
    ),
    ("GET", "/v1/batches/{batch_id}"): _openai(*_STORED, 404, whole=StoredBatch),
    ("POST", "/v1/batches/{batch_id}/cancel"): _openai(*_STORED, 404, whole=StoredBatch),
    ("GET", "/"): _tgi(503, whole=Health),
    ("POST", "/"): _tgi(
        422,
        *BODY,
        *BUSY,
        body=CompatRequest,
        whole=list[Generated],
        events=StreamToken | TgiError,
    ),
    ("POST", "/generate"): _tgi(422, *BODY, *BUSY, body=GenerateRequest, whole=Generated),
    ("POST", "/generate_stream"): _tgi(
        422, *BODY, *BUSY, body=GenerateRequest, events=StreamToken | TgiError
    ),
    ("POST", "/invocations"): Operation(
        TgiError | OpenAIError,
        (*_GENERATING, 404, 422, 424, 500),
        body=CompatRequest | ChatRequest | CompletionRequest,
        whole=list[Generated] | ChatCompletion | Completion,
        events=StreamToken | ChatChunk | CompletionChunk | TgiError | OpenAIError,
        last=DONE,
    ),
    ("POST", "/tokenize"): Operation(
        TgiError | OpenAIError,
        (400, 404, 422, *BODY, 424, 500, 503),
        body=GenerateRequest | TokenizeText | TokenizeChat,
        whole=list[Piece] | Tokens,
    ),
    ("POST", "/detokenize"): Operation(
        TgiError | OpenAIError,
        (400, 404, *BODY, 424, 500),
        body=DetokenizeRequest,
        whole=Prompt,
    ),
    ("POST", "/chat_tokenize"): _tgi(404, 422, *BODY, body=ChatRequest, whole=ChatPieces),
    ("GET", "/info"): _tgi(whole=Info),
}
