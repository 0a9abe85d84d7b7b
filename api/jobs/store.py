"""Shared by the handlers of the Batch API: the caller's identity, paging, errors of the store."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from flask import Blueprint, Request, Response, jsonify

from api.http.errors import ApiError, show
from api.jobs.shapes import Listed, ListPage
from api.openai.errors import error_shape
from deferred.entities import Batch, File, Order, Page
from deferred.errors import (
    FileTooLargeError,
    IdempotencyMismatchError,
    NotFoundError,
    QuotaExceededError,
    StatusConflictError,
    StoreError,
)

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5
ORDERS: tuple[Order, ...] = ("asc", "desc")
AFTER = {"after": {"type": "string"}}  # of an address, in the OpenAPI document

Record = TypeVar("Record", File, Batch)


def explain(error: StoreError) -> ApiError:
    match error:
        case NotFoundError():
            return ApiError(404, str(error), code="not_found")
        case QuotaExceededError():
            return ApiError(413, str(error), code="storage_quota_exceeded")
        case FileTooLargeError():
            return ApiError(413, str(error), param="file", code="file_too_large")
        case StatusConflictError():
            return ApiError(400, str(error), code="invalid_status")
        case IdempotencyMismatchError():
            return ApiError(400, str(error), code="idempotency_key_reused")
        case _:
            # its words are a library's or the operator's: addresses, users, paths
            log.warning("the job store is not available: %s", error)
            return ApiError(
                503,
                "the job store is not available; the server's log says why",
                {"Retry-After": str(RETRY_AFTER_S)},
                code="store_unavailable",
            )


def register_store_errors(blueprint: Blueprint) -> None:
    @blueprint.errorhandler(StoreError)
    def answer(error: StoreError) -> Response:
        told = explain(error)
        response = jsonify(error_shape(told))
        response.status_code = told.status
        response.headers.extend(told.headers)
        return response


def page_shape(page: Page[Record], shape: Callable[[Record], Listed]) -> ListPage[Listed]:
    data, ids = [shape(one) for one in page.data], [one.id for one in page.data]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": page.has_more,
    }


def query_limit(request: Request, fallback: int, most: int) -> int:
    text = request.args.get("limit")
    if text is None:
        return fallback
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise ApiError(
            400,
            f"'limit' must be a whole number from 1 to {most}, got {show(text)}",
            param="limit",
        )
    return int(text)


def query_choice(request: Request, name: str, allowed: Sequence[Any], fallback: Any) -> Any:
    text = request.args.get(name, fallback)
    if text not in allowed:
        raise ApiError(
            400, f"'{name}' must be {' or '.join(allowed)}, got {show(text)}", param=name
        )
    return text


def whole(time_s: float | None) -> int | None:
    return None if time_s is None else int(time_s)


Anchor = Literal["created_at"]
LEAST_EXPIRY_S, MOST_EXPIRY_S = 3600, 2_592_000  # OpenAI's: an hour, 30 days
EXPIRY = (
    f"an object: anchor ('created_at') and seconds (a whole number from {LEAST_EXPIRY_S} to "
    f"{MOST_EXPIRY_S})"
)
