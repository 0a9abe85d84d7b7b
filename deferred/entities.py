"""What the store keeps and returns. Times are unix seconds (UTC); None: not reached yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

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
ItemState = Literal["pending", "running", "completed", "failed", "expired", "cancelled"]
Unrun = Literal["expired", "cancelled"]  # why an item was never (fully) executed
Order = Literal["asc", "desc"]
Entity = TypeVar("Entity")


@dataclass(frozen=True, slots=True)
class File:
    id: str
    owner: str
    purpose: str
    filename: str
    size_bytes: int
    sha256: str
    created_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Page(Generic[Entity]):
    """Part of a list. The next part begins after the id of the last one."""

    data: tuple[Entity, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch failed validation. `line`: from 1; None: the error concerns the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class NewBatch:
    """The batch that a client asks for. `model`: the model of the server that accepted it. Among
    servers that share a database, only those with this model validate and execute the batch."""

    input_file_id: str
    endpoint: str
    model: str
    completion_window: str
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: float | None = None  # from the files' creation; None: never


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """`expired` and `cancelled` requests were not executed. At the end, the last four add up to
    `total`."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class BatchUsage:
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input's
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    owner: str
    spec: NewBatch
    status: BatchStatus
    created_at: float
    expires_at: float
    counts: RequestCounts
    usage: BatchUsage
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None


@dataclass(frozen=True, slots=True)
class NewItem:
    """One validated line. `body`: the request's body as JSON."""

    line: int  # in the file, from 1
    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A line with the custom_id of an earlier line."""

    line: int
    custom_id: str
    first_line: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to save one execution of one item. Only the store reads its fields."""

    batch: int
    line: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Item:
    """One line to execute."""

    lease: Lease
    batch_id: str
    owner: str
    endpoint: str
    deadline: float  # the end of its batch's window
    line: int
    custom_id: str
    body: bytes
    lost: int  # how many processes ended while they executed it


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of an item. `text`: its whole line (JSON, no newline) in the output file if it
    `succeeded`, otherwise in the error file."""

    lease: Lease
    succeeded: bool
    text: bytes
    usage: BatchUsage = BatchUsage()


@dataclass(frozen=True, slots=True)
class NewResponse:
    """A response to store. `input`: its own input items, without those of the response that it
    continues; `body`: the response itself; both as JSON."""

    id: str
    input: bytes
    body: bytes
    expires_at: float
    previous: int | None = None  # number of the stored response that it continues
    lost_at: float | None = None  # when it counts as lost, unless it has ended; None: it has


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """As `NewResponse`. `number`: rises with each response, and never leaves the server."""

    number: int
    id: str
    lost_at: float | None
    input: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of all jobs of all owners."""

    batches: Mapping[BatchStatus, int]  # only statuses that occur
    items: Mapping[ItemState, int]  # of batches that started; all states
    next_deadline: float | None  # the earliest of the batches in progress


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed."""

    files: int = 0
    items: int = 0
    batches: int = 0
    responses: int = 0
    unfinished: bool = False  # it reached its limit: call again
