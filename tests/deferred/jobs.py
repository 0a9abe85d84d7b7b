"""What the tests of the store have in common."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import func, inspect, select, text

from deferred.entities import (
    Base,
    Batch,
    BatchUsage,
    File,
    Item,
    LineResult,
    NewBatch,
    NewItem,
    Unrun,
)
from deferred.loop import JobOptions
from deferred.store import JobStore

OWNER = "an owner"
MODEL = "a model"
WORKER = "a worker"
NOW_S = 1000.0
EXPIRES_S = 5000.0


def options_of(**given: Any) -> JobOptions:
    limits = {"window": 8, "most_line_bytes": 1000, "retention_s": 3600}
    return JobOptions(names=[MODEL], **{**limits, "hurried": lambda: False, **given})


def new_items(count: int) -> list[NewItem]:
    return [NewItem(n, f"id-{n}", b'{"prompt":"%d"}' % n) for n in range(1, count + 1)]


def write(
    store: JobStore,
    content: Iterable[bytes],
    owner: str = OWNER,
    name: str = "in.jsonl",
    expires_at: float | None = None,
    **limits: Any,
) -> File:
    writer = store.files.begin(owner, "batch", name, NOW_S, **limits)
    try:
        for piece in content:
            writer.write(piece)
        return writer.end(NOW_S, expires_at)
    except BaseException:
        writer.give_up()
        raise


def upload(store: JobStore, content: Iterable[bytes] = (b"a\n",), owner: str = OWNER) -> str:
    return write(store, content, owner).id


def create(
    store: JobStore,
    model: str = MODEL,
    expires_at: float = EXPIRES_S,
    owner: str = OWNER,
    **spec: Any,
) -> Batch:
    wanted = NewBatch(upload(store, owner=owner), "/v1/completions", model, "24h", **spec)
    return store.batches.create(owner, wanted, NOW_S, expires_at=expires_at)


def validating(store: JobStore, lines: int = 0, **options) -> Batch:
    """A batch that this worker validates, with lines that it has found good."""
    batch = create(store, **options)
    claimed = store.batches.claim_validation(WORKER, batch.model, NOW_S)
    assert claimed is not None
    assert claimed.id == batch.id
    assert store.items.add(batch.id, WORKER, new_items(lines)) == []
    return batch


def started(store: JobStore, lines: int, **options) -> Batch:
    """A batch in progress."""
    batch = validating(store, lines, **options)
    store.batches.start(batch.id, WORKER, NOW_S)
    return store.batches.get(batch.owner, batch.id)


def claim(store: JobStore, n: int, worker: str = WORKER) -> list[Item]:
    return store.items.claim(worker, MODEL, n, NOW_S)


def result(item: Item, succeeded: bool = True) -> LineResult:
    text = json.dumps({"custom_id": item.custom_id, "attempt": item.lease.attempt}).encode()
    return LineResult(item.lease, succeeded, text, BatchUsage(3, 1, 5))


def unrun(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
    return json.dumps({"custom_id": custom_id, "why": why, "of": [batch_id, line]}).encode()


def lines_of(
    store: JobStore, owner: str, file_id: str | None, now_s: float = NOW_S
) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = b"".join(store.files.content(owner, file_id, now_s))
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def emptied(store: JobStore) -> JobStore:
    """Of PostgreSQL."""
    with store._database.write(durable=False) as session:
        session.execute(text(f"TRUNCATE {', '.join(Base.metadata.tables)}"))
    return store


def rows_of(store: JobStore, entity: type[Base]) -> int:
    """Of all batches and files."""
    with store._database.read() as session:
        return session.scalars(select(func.count()).select_from(entity)).one()


def swept(
    store: JobStore, entity: type[Base], now_s: float, rest: Callable[[], None] = lambda: None
) -> int:
    """How many rows a sweep removes."""
    before = rows_of(store, entity)
    store.sweep(now_s, 0.0, rest)
    return before - rows_of(store, entity)


def shown(row: Base) -> dict[str, Any]:
    """All columns. It fails if one of them would have to be read from the database."""
    assert inspect(row).detached
    return {name: getattr(row, name) for name in inspect(row).mapper.columns.keys()}  # noqa: SIM118


def counts_of(batch: Batch) -> tuple[int, ...]:
    return batch.total, batch.completed, batch.failed, batch.expired, batch.cancelled


@contextmanager
def full_disk(folder: Path, further_bytes: int = 0) -> Iterator[None]:
    """No file may grow beyond a size, which is how the database meets a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + further_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
