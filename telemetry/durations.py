"""The durations of one request, in seconds, from its record."""

from __future__ import annotations

from records import RequestRecord


def is_completed(record: RequestRecord) -> bool:
    return record.end in ("length", "stop")


def queue_s(record: RequestRecord) -> float:
    assert record.admitted_s is not None
    return record.admitted_s - record.arrival_s


def ttft_s(record: RequestRecord) -> float:
    assert record.first_token_s is not None
    return record.first_token_s - record.arrival_s


def tpot_s(record: RequestRecord) -> float | None:
    """(end - first token) / (tokens - 1): None for a single token."""
    assert record.first_token_s is not None
    if record.generated < 2:
        return None
    return (record.end_s - record.first_token_s) / (record.generated - 1)


def latency_s(record: RequestRecord) -> float:
    return record.end_s - record.arrival_s
