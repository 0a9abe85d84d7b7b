"""The responses of the Files and Batch APIs, as types: the code that builds a response is checked
against them, and `/openapi.json` is generated from them."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from typing_extensions import TypedDict

from deferred.entities import BatchStatus

Listed = TypeVar("Listed")


class StoredFile(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class ListPage(TypedDict, Generic[Listed]):
    object: Literal["list"]
    data: list[Listed]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchFault(TypedDict):
    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(TypedDict):
    object: Literal["list"]
    data: list[BatchFault]


class BatchCounts(TypedDict):
    total: int
    completed: int
    failed: int


class BatchUsage(TypedDict):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class StoredBatch(TypedDict):
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
