"""What the store keeps and returns. A class of `Base` is a table, and an instance is a row.

Times are unix seconds (UTC); None: not reached yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

BatchStatus = Literal[
    "validating",  # its lines are being read; then `failed` or `in_progress`
    "failed",
    "in_progress",
    "finalizing",  # no line runs any more; the output files are being written
    "completed",
    "expired",
    "cancelling",  # running lines may finish; then the files are written, then `cancelled`
    "cancelled",
]
OPEN_STATUSES: tuple[BatchStatus, ...] = ("validating", "in_progress", "finalizing", "cancelling")
ENDED: tuple[BatchStatus, ...] = ("completed", "expired", "cancelled", "failed")
ItemState = Literal["pending", "running", "completed", "failed", "expired", "cancelled"]
Unrun = Literal["expired", "cancelled"]  # why an item was never (fully) executed
Order = Literal["asc", "desc"]
Entity = TypeVar("Entity")


class Json(TypeDecorator[Any]):
    """A value as ASCII JSON. Clients' strings are stored this way too: they may contain NUL, which
    PostgreSQL cannot store."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class Base(DeclarativeBase):
    # a Literal would become an ENUM
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: Integer,
        float: Double,
        bytes: LargeBinary,
        str: Text,
        BatchStatus: Text,
        ItemState: Text,
    }


# Rises with each row and is never used twice, even after the last row is removed. SQLite
# autoincrements only columns of type INTEGER.
Serial = Annotated[
    int, mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
]
Unique = Annotated[str, mapped_column(unique=True)]
Big = Annotated[int, mapped_column(BigInteger)]
Count = Annotated[int, mapped_column(server_default="0")]
BigCount = Annotated[int, mapped_column(BigInteger, server_default="0")]
Parent = Annotated[int, mapped_column(BigInteger, primary_key=True, autoincrement=False)]
Place = Annotated[int, mapped_column(primary_key=True)]


class File(Base):
    __tablename__ = "files"

    number: Mapped[Serial]
    id: Mapped[Unique]
    owner: Mapped[str]
    purpose: Mapped[str]
    filename: Mapped[str] = mapped_column(Json)
    state: Mapped[str]  # uploading, ready, deleted
    size_bytes: Mapped[Big]  # while it is uploading: so far
    sha256: Mapped[str]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]

    __table_args__ = (
        Index("files_owner", "owner", "number"),
        Index("files_stored", "owner", "state", "size_bytes"),
        Index("files_state", "state", "expires_at"),
        {"sqlite_autoincrement": True},
    )


class FileChunk(Base):
    __tablename__ = "file_chunks"

    file: Mapped[Parent]
    seq: Mapped[Place]  # from 0; all but the last have CHUNK_BYTES
    data: Mapped[bytes]


class Batch(Base):
    __tablename__ = "batches"

    number: Mapped[Serial]
    id: Mapped[Unique]
    owner: Mapped[str]
    idempotency_key: Mapped[str | None] = mapped_column(Json)
    input_file: Mapped[Big]  # its number, which still leads to a deleted file
    input_file_id: Mapped[str]
    endpoint: Mapped[str]
    model: Mapped[str]
    completion_window: Mapped[str]
    pairs: Mapped[dict[str, str] | None] = mapped_column("metadata", Json)
    output_expires_after_s: Mapped[float | None]
    status: Mapped[BatchStatus]
    outcome: Mapped[BatchStatus]  # the final status that finalising leads to
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(Json)  # of `LineError`
    created_at: Mapped[float]
    expires_at: Mapped[float]
    in_progress_at: Mapped[float | None]
    finalizing_at: Mapped[float | None]
    completed_at: Mapped[float | None]
    failed_at: Mapped[float | None]
    expired_at: Mapped[float | None]
    cancelling_at: Mapped[float | None]
    cancelled_at: Mapped[float | None]
    ended_at: Mapped[float | None]  # equals that of its final status
    # fixed at creation, so that finalisation finds what an interrupted attempt left
    planned_output_id: Mapped[str]
    planned_error_id: Mapped[str]
    output_file_id: Mapped[str | None]  # as the owner sees them: null until the end
    error_file_id: Mapped[str | None]
    # changed in the transactions that change the items
    total: Mapped[Count]
    completed: Mapped[Count]
    failed: Mapped[Count]
    expired: Mapped[Count]
    cancelled: Mapped[Count]
    input_tokens: Mapped[BigCount]
    cached_tokens: Mapped[BigCount]
    output_tokens: Mapped[BigCount]
    stored_bytes: Mapped[BigCount]  # of its lines (the size of the input file) and results
    lease_owner: Mapped[str | None]  # the worker that validates or finalises it
    lease_until: Mapped[float | None]
    swept: Mapped[Count]  # 1: its items are removed

    __table_args__ = (
        UniqueConstraint("owner", "idempotency_key"),
        Index("batches_owner", "owner", "number"),
        Index("batches_status", "status", "swept"),
        Index("batches_ended", "ended_at"),
        Index("batches_leased", "lease_owner"),
        {"sqlite_autoincrement": True},
    )


class EndedTotals(Base):
    """Totals of the ended batches that are not removed yet, so that `progress` need not read them
    all."""

    __tablename__ = "ended_totals"

    status: Mapped[BatchStatus] = mapped_column(primary_key=True)
    batches: Mapped[BigCount]
    total: Mapped[BigCount]
    completed: Mapped[BigCount]
    failed: Mapped[BigCount]
    expired: Mapped[BigCount]
    cancelled: Mapped[BigCount]


PENDING, RUNNING = text("state = 'pending'"), text("state = 'running'")


class BatchItem(Base):
    """Its body and result, which are large and never change, have tables of their own: SQLite
    rewrites the whole row when one column changes."""

    __tablename__ = "batch_items"

    batch: Mapped[Parent]
    line: Mapped[Place]
    custom_id: Mapped[str] = mapped_column(Json)
    digest: Mapped[bytes]  # of custom_id, which may be too long for an index
    state: Mapped[ItemState]
    attempt: Mapped[Count]  # counts the claims
    lost: Mapped[Count]
    lease_owner: Mapped[str | None]
    lease_until: Mapped[float | None]

    __table_args__ = (
        UniqueConstraint("batch", "digest"),
        Index("items_pending", "batch", "line", sqlite_where=PENDING, postgresql_where=PENDING),
        Index("items_running", "lease_owner", sqlite_where=RUNNING, postgresql_where=RUNNING),
    )


class ItemBody(Base):
    __tablename__ = "item_bodies"

    batch: Mapped[Parent]
    line: Mapped[Place]
    body: Mapped[bytes]


class ItemResult(Base):
    __tablename__ = "item_results"

    batch: Mapped[Parent]
    line: Mapped[Place]
    text: Mapped[bytes]


NOT_ENDED = text("lost_at IS NOT NULL")


class StoredResponse(Base):
    """`input`: its own input items, without those of the response that it continues; `body`: the
    response itself; both as JSON. `number` never leaves the server."""

    __tablename__ = "responses"

    number: Mapped[Serial]
    id: Mapped[Unique]
    owner: Mapped[str]
    previous: Mapped[int | None] = mapped_column(BigInteger)  # number of that which it continues
    created_at: Mapped[float]
    expires_at: Mapped[float]
    lost_at: Mapped[float | None]  # when it counts as lost, unless it has ended; null: it has
    size_bytes: Mapped[Big]  # of the two below
    input: Mapped[bytes]
    body: Mapped[bytes]

    __table_args__ = (
        Index("responses_stored", "owner", "size_bytes"),
        Index("responses_expiry", "expires_at"),
        Index("responses_running", "lost_at", sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED),
        {"sqlite_autoincrement": True},
    )


# --- what the store is given, and what it returns besides rows ----------------------------------


@dataclass(frozen=True, slots=True)
class Page(Generic[Entity]):
    """Part of a list. The next part begins after the id of the last one."""

    data: tuple[Entity, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class NewBatch:
    """The batch that a client asks for. `model`: the model of the server that accepted it. Among
    servers that share a database, only those with this model validate and execute the batch."""

    input_file_id: str
    endpoint: str
    model: str
    completion_window: str
    pairs: dict[str, str] | None = None  # its metadata
    output_expires_after_s: float | None = None  # from the files' creation; None: never


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch failed validation. `line`: from 1; None: the error concerns the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class NewItem:
    """One validated line. `body`: the request's body as JSON."""

    line: int  # in the file, from 1
    custom_id: str
    body: bytes


class Lease(NamedTuple):
    """The right to save one execution of one item."""

    batch: int
    line: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Item:
    """One line to execute, before its batch's window ends."""

    batch: Batch
    lease: Lease
    custom_id: str
    body: bytes
    lost: int  # how many processes ended while they executed it


@dataclass(frozen=True, slots=True)
class BatchUsage:
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input's
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of an item. `text`: its whole line (JSON, no newline) in the output file if it
    `succeeded`, otherwise in the error file."""

    lease: Lease
    succeeded: bool
    text: bytes
    usage: BatchUsage = BatchUsage()


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of all jobs of all owners."""

    batches: Mapping[BatchStatus, int]  # only statuses that occur
    items: Mapping[ItemState, int]  # of batches that started; all states
    next_deadline: float | None  # the earliest of the batches in progress
