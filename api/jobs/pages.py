"""What files, batches and stored responses share: lists in pages, and when files expire."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from flask import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from api.http.errors import ApiError, show
from api.openapi import Answer
from deferred.entities import Base, Batch, File, Order, Page

ORDERS: tuple[Order, ...] = ("asc", "desc")
AFTER = {"after": {"type": "string"}}  # of an address, in the OpenAPI document
LEAST_EXPIRY_S, MOST_EXPIRY_S = 3600, 2_592_000  # OpenAI's: an hour, 30 days
EXPIRY = (
    f"an object: anchor ('created_at') and seconds (a whole number from {LEAST_EXPIRY_S} to "
    f"{MOST_EXPIRY_S})"
)


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"]
    seconds: int = Field(ge=LEAST_EXPIRY_S, le=MOST_EXPIRY_S)


Time = Annotated[int, BeforeValidator(int)]  # of a store's fraction, in a response
Record = TypeVar("Record", File, Batch)
Listed = TypeVar("Listed", bound=Answer)


class ListPage(Answer, Generic[Listed]):
    model_config = ConfigDict(title="ListPage")  # also where it says what is listed

    object: Literal["list"] = "list"
    data: list[Listed]
    first_id: str | None
    last_id: str | None
    has_more: bool


def page_of(
    kind: type[ListPage[Listed]], page: Page[Record], shape: Callable[[Record], Listed]
) -> ListPage[Listed]:
    first, last = (page.data[0].id, page.data[-1].id) if page.data else (None, None)
    data = list(map(shape, page.data))
    return kind(data=data, first_id=first, last_id=last, has_more=page.has_more)


def same_fields(kind: type[Answer], row: Base) -> dict[str, Any]:
    """What a response says of a row of the store under the names of its columns."""
    return {name: value for name, value in vars(row).items() if name in kind.model_fields}


def query_limit(request: Request, fallback: int, most: int) -> int:
    text = request.args.get("limit", str(fallback))
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
