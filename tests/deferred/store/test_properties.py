"""Any order of claims, results, silence, crashes, cancellations and ends of windows: what counted
was held by who recorded it, and each line is exactly once in the output or the error file."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection

from deferred.entities import Item, Lease, NewBatch, Usage
from deferred.errors import StatusConflictError
from deferred.store import open_store
from deferred.store.transitions import LEASE_S
from tests.deferred.jobs import ids, lines_of, new_items, result, unrun

WINDOW_S = 3 * LEASE_S
FOREVER = 10**9
WORKERS = st.sampled_from(["a", "b"])
FUSES = st.one_of(st.just(FOREVER), st.integers(0, 5))
names = itertools.count()


class CrashError(Exception):
    """The process ends here: the transaction is not committed, nothing after it happens."""


@dataclass
class Job:
    id: str
    lines: int
    recorded: dict[int, bool] = field(default_factory=dict)  # line -> succeeded
    ended: bool = False


class Store(RuleBasedStateMachine):
    """Two workers on one store, which on SQLite crash together."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        name = str(next(names))  # PostgreSQL's database is that of all examples
        self.owner, self.model = f"owner {name}", f"model {name}"
        self.prefix = f"{name}-"
        self.now_s = 1.0  # `sweep` removes batches that ended at 0, and all of them are examined
        self.jobs: dict[str, Job] = {}
        self.running: dict[Lease, tuple[str, float]] = {}  # worker, end of lease
        self.seen: list[tuple[str, Item]] = []
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        if self.url == "sqlite":
            self.where = f"sqlite:///{self.folder.name}/jobs.db"
        else:
            self.where = self.url
        self.open()

    def open(self) -> None:
        self.store = open_store(self.where)
        self.fuse = FOREVER
        write = self.store._database.write

        @contextmanager
        def fused(*, durable: bool) -> Iterator[Connection]:
            with write(durable=durable) as connection:
                yield connection
                self.fuse -= 1
                if self.fuse < 0:
                    raise CrashError

        self.store._database.write = fused  # type: ignore[method-assign]

    @contextmanager
    def may_crash(self, fuse: int) -> Iterator[None]:
        """Before the commit of that number."""
        self.fuse = fuse
        try:
            yield
        except CrashError:
            self.crash()
        self.fuse = FOREVER

    def worker(self, name: str) -> str:
        return self.prefix + name

    @rule()
    def crash(self) -> None:
        self.store.close()
        if self.url == "sqlite":
            self.running.clear()
        else:
            self.now_s += LEASE_S + 1
        self.open()
        self.recover()

    @initialize(lines=st.integers(2, 6))
    def begin(self, lines: int) -> None:
        self.create(lines)
        self.validate("a", FOREVER)

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(lines=st.integers(1, 6))
    def create(self, lines: int) -> None:
        file = self.store.files.create(self.owner, "batch", "x", [b"x"], self.now_s)
        spec = NewBatch(file.id, "/v1/completions", self.model, "24h")
        batch = self.store.batches.create(
            self.owner, spec, self.now_s, expires_at=self.now_s + WINDOW_S
        )
        self.jobs[batch.id] = Job(batch.id, lines)

    @rule(worker=WORKERS, fuse=FUSES)
    def validate(self, worker: str, fuse: int) -> None:
        name = self.worker(worker)
        with self.may_crash(fuse):
            batch = self.store.batches.claim_validation(name, self.model, self.now_s)
            if batch is not None:
                for item in new_items(self.jobs[batch.id].lines):
                    assert not self.store.items.add(batch.id, name, [item])
                self.store.batches.start(batch.id, name, self.now_s)

    @rule(worker=WORKERS, n=st.integers(0, 5))
    def claim(self, worker: str, n: int) -> None:
        items = self.store.items.claim(self.worker(worker), self.model, n, self.now_s)
        assert len(items) <= n
        taken = {(lease.batch, lease.line) for lease in self.running}
        for item in items:
            assert (item.lease.batch, item.line) not in taken
            assert item.line not in self.jobs[item.batch_id].recorded
            self.running[item.lease] = (worker, self.now_s + LEASE_S)
            self.seen.append((worker, item))

    @precondition(lambda self: self.seen)
    @rule(worker=WORKERS, data=st.data(), succeeded=st.booleans(), twice=st.booleans())
    def save(self, worker: str, data: st.DataObject, succeeded: bool, twice: bool) -> None:
        """Also what others hold, what was lost, and the same twice."""
        items = [item for _, item in reversed(self.seen)]
        chosen = data.draw(st.lists(st.sampled_from(items), min_size=1, max_size=3))
        expected = 0
        for item in chosen:
            if self.running.get(item.lease, ("", 0))[0] == worker:
                del self.running[item.lease]
                self.jobs[item.batch_id].recorded[item.line] = succeeded
                expected += 1
        results = [result(item, succeeded) for item in chosen]
        if twice:
            results += [result(item, not succeeded) for item in chosen]
        assert self.store.items.save(self.worker(worker), results) == expected

    @rule(worker=WORKERS)
    def record_all(self, worker: str) -> None:
        mine = [item for _, item in self.seen if self.running.get(item.lease, ("",))[0] == worker]
        for item in mine:
            del self.running[item.lease]
            self.jobs[item.batch_id].recorded[item.line] = True
        counted = self.store.items.save(self.worker(worker), [result(item) for item in mine])
        assert counted == len(mine)

    @rule(
        worker=WORKERS,
        chore=st.sampled_from(["heartbeat", "release", "recover", "sweep", "withdraw"]),
        seconds=st.sampled_from([0.0, LEASE_S / 2, LEASE_S]),
    )
    def chore(self, worker: str, chore: str, seconds: float) -> None:
        self.now_s += seconds
        if chore == "heartbeat":
            self.heartbeat(worker)
        elif chore == "release":
            self.release(worker)
        elif chore == "recover":
            self.recover()
        elif chore == "withdraw":
            self.withdraw(worker)
        else:
            self.store.sweep(self.now_s, 0.0)

    def heartbeat(self, worker: str) -> None:
        held = {lease for lease, (of, _) in self.running.items() if of == worker}
        known = [item.lease for _, item in self.seen]
        assert self.store.items.heartbeat(self.worker(worker), known, self.now_s) == held
        for lease in held:
            self.running[lease] = (worker, self.now_s + LEASE_S)

    def release(self, worker: str) -> None:
        held = [lease for lease, (of, _) in self.running.items() if of == worker]
        assert self.store.items.release(self.worker(worker)) == len(held)
        for lease in held:
            del self.running[lease]

    def withdraw(self, worker: str) -> None:
        ours = {
            item.lease: item.batch_id
            for _, item in self.seen
            if self.running.get(item.lease, ("",))[0] == worker
        }
        cancelled = {
            lease
            for lease, batch_id in ours.items()
            if self.store.batches.get(self.owner, batch_id).status == "cancelling"
        }
        assert self.store.items.withdraw(self.worker(worker), list(ours)) == cancelled
        for lease in cancelled:
            del self.running[lease]

    def recover(self) -> None:
        self.store.items.recover(self.now_s)
        for lease, (_, until) in list(self.running.items()):
            if until <= self.now_s:
                del self.running[lease]

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), fuse=FUSES)
    def expire(self, data: st.DataObject, fuse: int) -> None:
        job = self.jobs[data.draw(st.sampled_from(list(self.jobs)))]
        self.now_s = max(self.now_s, self.store.batches.get(self.owner, job.id).expires_at)
        with self.may_crash(fuse):
            self.store.batches.end_due(self.now_s)
        for _, item in self.seen:
            counts = self.store.batches.get(self.owner, item.batch_id).counts
            ended = counts.completed + counts.failed + counts.expired + counts.cancelled
            if ended == counts.total:
                self.running.pop(item.lease, None)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.jobs[data.draw(st.sampled_from(list(self.jobs)))]
        before = self.store.batches.get(self.owner, job.id)
        if before.status in ("validating", "in_progress", "cancelling"):
            after = self.store.batches.cancel(self.owner, job.id, self.now_s)
            assert after.status == "cancelling"
        else:
            with pytest.raises(StatusConflictError):
                self.store.batches.cancel(self.owner, job.id, self.now_s)

    @rule(worker=WORKERS, fuse=FUSES)
    def finalise(self, worker: str, fuse: int) -> None:
        name = self.worker(worker)
        with self.may_crash(fuse):
            batch = self.store.batches.claim_finalisation(name, self.now_s)
            if batch is not None:
                self.store.batches.finalise(batch.id, name, self.now_s, unrun)

    @invariant()
    def counters_match_what_was_recorded(self) -> None:
        for job in self.jobs.values():
            batch = self.store.batches.get(self.owner, job.id)
            counts = batch.counts
            succeeded = sum(job.recorded.values())
            assert (counts.completed, counts.failed) == (
                succeeded,
                len(job.recorded) - succeeded,
            )
            n = len(job.recorded)
            assert batch.usage == Usage(3 * n, n, 5 * n)
            ended = counts.completed + counts.failed + counts.expired + counts.cancelled
            assert counts.total in (0, job.lines)
            assert ended <= counts.total
            if batch.status in ("completed", "expired", "cancelled"):
                assert ended == counts.total
                if not job.ended:
                    self.check_files(job)
                    job.ended = True
            else:
                assert batch.output_file_id is batch.error_file_id is None

    def check_files(self, job: Job) -> None:
        batch = self.store.batches.get(self.owner, job.id)
        output = lines_of(self.store, self.owner, batch.output_file_id, self.now_s)
        error = lines_of(self.store, self.owner, batch.error_file_id, self.now_s)
        lines = range(1, job.lines + 1) if batch.in_progress_at is not None else []
        assert ids(output) == [f"id-{line}" for line in lines if job.recorded.get(line)]
        assert ids(error) == [f"id-{line}" for line in lines if not job.recorded.get(line)]
        ran = [line for line in error if "attempt" in line]
        assert len(ran) == batch.counts.failed
        assert {line["why"] for line in error if "why" in line} <= {batch.status}

    def teardown(self) -> None:
        """However it went, workers that live bring all of it to its end."""
        self.now_s += LEASE_S
        self.recover()
        for _ in self.jobs:
            self.validate("a", FOREVER)
        for _ in range(sum(job.lines for job in self.jobs.values())):
            self.claim("a", 5)
            self.record_all("a")
        for _ in self.jobs:
            self.finalise("a", FOREVER)
        self.counters_match_what_was_recorded()
        assert all(job.ended for job in self.jobs.values())
        self.store.close()
        self.folder.cleanup()


# In parts: an example sends PostgreSQL a thousand statements and waits for each, so a busy machine
# takes ten times as long as an idle one, and 600 examples longer than any useful limit.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "examples", "part"),
    [
        ("sqlite", 8, 0),
        ("postgresql", 3, 0),
        *(
            pytest.param(kind, 100, part, marks=pytest.mark.long)
            for kind in ("sqlite", "postgresql")
            for part in range(6)
        ),
    ],
)
def test_every_line_is_recorded_once_whatever_happens(kind, examples, part, request) -> None:
    url = kind if kind == "sqlite" else request.getfixturevalue("postgresql_url")
    machine = type("StoreOn" + kind, (Store,), {"url": url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate],  # to shrink a failure takes minutes
        ),
    )
