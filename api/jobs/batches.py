"""OpenAI's Batch API: `/v1/batches`. docs/deferred.md describes the life of a batch."""

from __future__ import annotations

import re
import time
from typing import Annotated, Literal

from flask import Blueprint, Response, g, request
from pydantic import BaseModel, ConfigDict, Field, field_validator

from api.http.body import read_body
from api.http.errors import ApiError, show
from api.jobs.pages import (
    AFTER,
    EXPIRY,
    ExpiresAfter,
    ListPage,
    Time,
    page_of,
    query_limit,
    same_fields,
)
from api.limits import METADATA, MOST_PAIRS, Metadata, at_most
from api.openai.errors import openai_errors
from api.openapi import BODY, STORED, Answer, limit, respond
from api.service import Service
from deferred.entities import Batch, BatchStatus, NewBatch
from deferred.jobs import Jobs
from deferred.lines import ENDPOINTS

LISTED, MOST_LISTED = 20, 100
MOST_WINDOW_S = 30 * 86_400
MOST_IDEMPOTENCY_KEY = 255  # characters
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WINDOW = "a whole number followed by s, m, h or d, such as '24h', up to '30d'"


class BatchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: str = Field(description="the id of a file with purpose 'batch'")
    endpoint: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses"] = Field(
        description=" or ".join(f"'{endpoint}'" for endpoint in ENDPOINTS)
    )
    completion_window: str = Field(description=WINDOW)
    metadata: Metadata | None = Field(None, description=METADATA)
    output_expires_after: Annotated[ExpiresAfter, at_most(MOST_PAIRS)] | None = Field(
        None, description=EXPIRY
    )

    @field_validator("completion_window")
    @classmethod
    def _is_a_window(cls, value: str) -> str:
        if not 0 < window_s(value) <= MOST_WINDOW_S:
            raise ValueError("no window")
        return value


class BatchFault(Answer):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(Answer):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class BatchCounts(Answer):
    total: int
    completed: int
    failed: int


class BatchUsage(Answer):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class StoredBatch(Answer):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: Time
    in_progress_at: Time | None
    expires_at: Time | None
    finalizing_at: Time | None
    completed_at: Time | None
    failed_at: Time | None
    expired_at: Time | None
    cancelling_at: Time | None
    cancelled_at: Time | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


def window_s(text: str) -> int:
    """0 if it is not a window."""
    match = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    return int(match[1]) * UNIT_S[match[2]] if match else 0


def make_blueprint(service: Service, jobs: Jobs, model: str) -> Blueprint:
    """`model`: as clients call it."""
    blueprint = Blueprint("batches", __name__, url_prefix="/v1/batches")
    retention_s = service.config.file_retention_days * 86_400

    @blueprint.post("")
    @openai_errors(*STORED, 404, *BODY, body=BatchRequest, whole=StoredBatch)
    def create() -> Response:
        service.require_ready()
        asked = read_body(request, BatchRequest, service.config.max_body_bytes)
        key = request.headers.get("Idempotency-Key")
        if key is not None and len(key) > MOST_IDEMPOTENCY_KEY:
            raise ApiError(400, f"Idempotency-Key has more than {MOST_IDEMPOTENCY_KEY} characters")
        expiry = asked.output_expires_after
        length_s = window_s(asked.completion_window)
        if length_s < service.config.min_completion_window:
            raise ApiError(
                400,
                f"'completion_window' is {show(asked.completion_window)}; the shortest that is "
                f"allowed here is {service.config.min_completion_window} s "
                "(--min-completion-window)",
                param="completion_window",
            )
        now_s = time.time()
        batch = jobs.store.batches.create(
            g.owner,
            NewBatch(
                asked.input_file_id,
                asked.endpoint,
                model,
                asked.completion_window,
                asked.metadata,
                retention_s if expiry is None else expiry.seconds,
            ),
            now_s,
            expires_at=now_s + length_s,
            idempotency_key=key,
            quota_bytes=service.config.max_stored_bytes,
        )
        jobs.wake()
        return respond(batch_shape(batch))

    @blueprint.get("")
    @openai_errors(
        *STORED, 404, whole=ListPage[StoredBatch], query={**AFTER, "limit": limit(MOST_LISTED)}
    )
    def listed() -> Response:
        page = jobs.store.batches.list(
            g.owner,
            after=request.args.get("after"),
            limit=query_limit(request, LISTED, MOST_LISTED),
        )
        return respond(page_of(ListPage[StoredBatch], page, batch_shape))

    @blueprint.get("/<batch_id>")
    @openai_errors(*STORED, 404, whole=StoredBatch)
    def batch(batch_id: str) -> Response:
        return respond(batch_shape(jobs.store.batches.get(g.owner, batch_id)))

    @blueprint.post("/<batch_id>/cancel")
    @openai_errors(*STORED, 404, whole=StoredBatch)
    def cancel(batch_id: str) -> Response:
        cancelled = jobs.store.batches.cancel(g.owner, batch_id, time.time())
        jobs.wake()
        return respond(batch_shape(cancelled))

    return blueprint


def batch_shape(batch: Batch) -> StoredBatch:
    errors = BatchFaults.model_validate({"data": batch.errors}) if batch.errors else None
    usage = BatchUsage(
        input_tokens=batch.input_tokens,
        input_tokens_details={"cached_tokens": batch.cached_tokens},
        output_tokens=batch.output_tokens,
        output_tokens_details={"reasoning_tokens": 0},
        total_tokens=batch.input_tokens + batch.output_tokens,
    )
    counts = BatchCounts(total=batch.total, completed=batch.completed, failed=batch.failed)
    more = {"errors": errors, "metadata": batch.pairs, "request_counts": counts, "usage": usage}
    return StoredBatch(**{**same_fields(StoredBatch, batch), **more})
