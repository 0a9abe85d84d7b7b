"""Any order of claims, results, silence, crashes, cancellations and ends of windows: what counted
was held by who recorded it, and each line is exactly once in the output or the error file."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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

from deferred.entities import Item, Lease, Usage
from deferred.errors import StatusConflictError
from deferred.store import open_store
from deferred.store.transitions import LEASE_S
from tests.deferred.jobs import (
    MODEL,
    OWNER,
    create,
    emptied,
    ids,
    lines_of,
    new_items,
    result,
    unrun,
)
from tests.support.postgres import FASTEST

WINDOW_S = 3 * LEASE_S
FOREVER = 10**9
WORKERS = st.sampled_from(["a", "b"])
FUSES = st.one_of(st.just(FOREVER), st.integers(0, 5))


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

    url: str  # of PostgreSQL; none: SQLite

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0  # `sweep` removes batches that ended at 0, and all of them are examined
        self.jobs: dict[str, Job] = {}
        self.running: dict[Lease, tuple[str, float]] = {}  # worker, end of lease
        self.seen: list[Item] = []
        self.folder = tempfile.TemporaryDirectory(dir=FASTEST)
        if self.url:
            emptied(open_store(self.url)).close()
        self.open()

    def open(self) -> None:
        self.store = open_store(self.url or self.folder.name)
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

    @rule()
    def crash(self) -> None:
        self.store.close()
        if self.url:
            self.now_s += LEASE_S + 1
        else:
            self.running.clear()
        self.open()
        self.recover(0.0)

    @initialize(lines=st.integers(2, 6))
    def begin(self, lines: int) -> None:
        self.create(lines)
        self.validate("a", FOREVER)

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(lines=st.integers(1, 6))
    def create(self, lines: int) -> None:
        batch = create(self.store, expires_at=self.now_s + WINDOW_S)
        self.jobs[batch.id] = Job(batch.id, lines)

    @rule(worker=WORKERS, fuse=FUSES)
    def validate(self, worker: str, fuse: int) -> None:
        with self.may_crash(fuse):
            batch = self.store.batches.claim_validation(worker, MODEL, self.now_s)
            if batch is not None:
                for item in new_items(self.jobs[batch.id].lines):
                    assert not self.store.items.add(batch.id, worker, [item])
                self.store.batches.start(batch.id, worker, self.now_s)

    @rule(worker=WORKERS, n=st.integers(0, 5))
    def claim(self, worker: str, n: int) -> None:
        items = self.store.items.claim(worker, MODEL, n, self.now_s)
        assert len(items) <= n
        taken = {(lease.batch, lease.line) for lease in self.running}
        for item in items:
            assert (item.lease.batch, item.line) not in taken
            assert item.line not in self.jobs[item.batch_id].recorded
            self.running[item.lease] = (worker, self.now_s + LEASE_S)
            self.seen.append(item)

    def held_by(self, worker: str) -> list[Item]:
        return [item for item in self.seen if self.running.get(item.lease, ("",))[0] == worker]

    @precondition(lambda self: self.seen)
    @rule(worker=WORKERS, data=st.data(), succeeded=st.booleans(), twice=st.booleans())
    def save(self, worker: str, data: st.DataObject, succeeded: bool, twice: bool) -> None:
        """Also what others hold, what was lost, and the same twice."""
        chosen = data.draw(st.lists(st.sampled_from(self.seen[::-1]), min_size=1, max_size=3))
        results = [result(item, succeeded) for item in chosen]
        if twice:
            results += [result(item, not succeeded) for item in chosen]
        expected = 0
        for item in chosen:
            if self.running.get(item.lease, ("", 0))[0] == worker:
                del self.running[item.lease]
                self.jobs[item.batch_id].recorded[item.line] = succeeded
                expected += 1
        assert self.store.items.save(worker, results) == expected

    @rule(worker=WORKERS)
    def record_all(self, worker: str) -> None:
        mine = self.held_by(worker)
        for item in mine:
            del self.running[item.lease]
            self.jobs[item.batch_id].recorded[item.line] = True
        assert self.store.items.save(worker, [result(item) for item in mine]) == len(mine)

    @rule(worker=WORKERS)
    def heartbeat(self, worker: str) -> None:
        held = {item.lease for item in self.held_by(worker)}
        known = [item.lease for item in self.seen]
        assert self.store.items.heartbeat(worker, known, self.now_s) == held
        for lease in held:
            self.running[lease] = (worker, self.now_s + LEASE_S)

    @rule(worker=WORKERS)
    def release(self, worker: str) -> None:
        held = self.held_by(worker)
        assert self.store.items.release(worker) == len(held)
        for item in held:
            del self.running[item.lease]

    @rule(worker=WORKERS)
    def withdraw(self, worker: str) -> None:
        ours = self.held_by(worker)
        cancelled = {
            item.lease
            for item in ours
            if self.store.batches.get(OWNER, item.batch_id).status == "cancelling"
        }
        assert self.store.items.withdraw(worker, [item.lease for item in ours]) == cancelled
        for lease in cancelled:
            del self.running[lease]

    @rule(seconds=st.sampled_from([0.0, LEASE_S / 2, LEASE_S]))
    def recover(self, seconds: float) -> None:
        self.now_s += seconds
        self.store.items.recover(self.now_s)
        for lease, (_, until) in list(self.running.items()):
            if until <= self.now_s:
                del self.running[lease]

    @rule()
    def sweep(self) -> None:
        self.store.sweep(self.now_s, 0.0)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), fuse=FUSES)
    def expire(self, data: st.DataObject, fuse: int) -> None:
        job = self.jobs[data.draw(st.sampled_from(list(self.jobs)))]
        self.now_s = max(self.now_s, self.store.batches.get(OWNER, job.id).expires_at)
        with self.may_crash(fuse):
            self.store.batches.end_due(self.now_s)
        for item in self.seen:
            counts = self.store.batches.get(OWNER, item.batch_id).counts
            ended = counts.completed + counts.failed + counts.expired + counts.cancelled
            if ended == counts.total:
                self.running.pop(item.lease, None)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = self.jobs[data.draw(st.sampled_from(list(self.jobs)))]
        before = self.store.batches.get(OWNER, job.id)
        if before.status in ("validating", "in_progress", "cancelling"):
            after = self.store.batches.cancel(OWNER, job.id, self.now_s)
            assert after.status == "cancelling"
        else:
            with pytest.raises(StatusConflictError):
                self.store.batches.cancel(OWNER, job.id, self.now_s)

    @rule(worker=WORKERS, fuse=FUSES)
    def finalise(self, worker: str, fuse: int) -> None:
        with self.may_crash(fuse):
            batch = self.store.batches.claim_finalisation(worker, self.now_s)
            if batch is not None:
                self.store.batches.finalise(batch.id, worker, self.now_s, unrun)

    @invariant()
    def counters_match_what_was_recorded(self) -> None:
        for job in self.jobs.values():
            batch = self.store.batches.get(OWNER, job.id)
            counts, n = batch.counts, len(job.recorded)
            succeeded = sum(job.recorded.values())
            assert (counts.completed, counts.failed) == (succeeded, n - succeeded)
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
        batch = self.store.batches.get(OWNER, job.id)
        output = lines_of(self.store, OWNER, batch.output_file_id, self.now_s)
        error = lines_of(self.store, OWNER, batch.error_file_id, self.now_s)
        lines = range(1, job.lines + 1) if batch.in_progress_at is not None else []
        assert ids(output) == [f"id-{line}" for line in lines if job.recorded.get(line)]
        assert ids(error) == [f"id-{line}" for line in lines if not job.recorded.get(line)]
        assert len([line for line in error if "attempt" in line]) == batch.counts.failed
        assert {line["why"] for line in error if "why" in line} <= {batch.status}

    def teardown(self) -> None:
        """However it went, workers that live bring all of it to its end."""
        self.recover(LEASE_S)
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


# PostgreSQL is sent a thousand statements an example and waits for each
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("sqlite", 8),
        ("postgresql", 3),
        pytest.param("sqlite", 600, marks=pytest.mark.long),
        pytest.param("postgresql", 100, marks=pytest.mark.long),
    ],
)
def test_every_line_is_recorded_once_whatever_happens(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    url = "" if kind == "sqlite" else request.getfixturevalue("shared_postgresql_url")
    run_state_machine_as_test(
        type("StoreOn" + kind, (Store,), {"url": url}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate],  # to shrink a failure takes minutes
        ),
    )
