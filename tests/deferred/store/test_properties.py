"""Any order of claims, results, silence, crashes, cancellations and ends of windows, against an
account of every batch and line: each line is exactly once in the output or the error file."""

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import accumulate

import pytest
from sqlalchemy.orm import Session

from deferred.entities import (
    Batch,
    BatchItem,
    BatchProgress,
    BatchStatus,
    Item,
    ItemState,
    LineError,
    NewItem,
    Unrun,
)
from deferred.errors import LeaseLostError, StatusConflictError
from deferred.store import open_store
from deferred.store.transitions import LEASE_S
from tests.deferred.jobs import (
    MODEL,
    OWNER,
    counts_of,
    create,
    emptied,
    lines_of,
    result,
    rows_of,
    unrun,
)
from tests.support.postgres import FASTEST

# Few lines meet all bounds, and times are multiples of half a lease, so that they are met exactly.
CANCELLING_S = LEASE_S / 2
LEAST = {
    "batches.CANCELLING_S": CANCELLING_S,
    "items.ITEMS_A_COMMIT": 2,
    "transitions.ITEMS_A_COMMIT": 2,
    "batches.LINES_A_READ": 2,
    "batches.CHUNKS_A_COMMIT": 1,
    "files.CHUNK_BYTES": 99,
}
ERRORS = (LineError("invalid_json_line", "not \0 JSON", 2), LineError("x", "y", param="body"))
STATES: list[ItemState] = ["pending", "running", "completed", "failed", "expired", "cancelled"]
ENDS: list[BatchStatus] = ["failed", "completed", "expired", "cancelled"]
TIMES = [*ENDS, "in_progress", "finalizing", "cancelling"]


class CrashError(Exception):
    """The process ends here: the transaction is not committed, nothing after it happens."""


@dataclass
class Line:
    state: ItemState = "pending"
    attempt: int = 0
    lost: int = 0
    worker: str = ""
    until: float = 0.0


@dataclass
class Job:
    id: str
    model: str
    expires_at: float
    added: int = 0  # lines, by its validation so far
    lines: list[Line] = field(default_factory=list)  # once they are validated
    status: BatchStatus = "validating"
    outcome: Unrun | None = None
    times: dict[str, float] = field(default_factory=dict)
    worker: str = ""  # which validates or finalises it
    until: float = 0.0

    def enter(self, status: BatchStatus, now_s: float) -> None:
        self.status, self.worker = status, ""
        self.times[status] = now_s

    def count(self, *states: ItemState) -> int:
        return sum(line.state in states for line in self.lines)

    @property
    def open(self) -> bool:
        return self.count("pending", "running") > 0

    def end(self, why: Unrun, *states: ItemState) -> None:
        for line in self.lines:
            if line.state in states:
                line.state = why

    def require_shown(self, batch: Batch) -> None:
        n = self.count("completed", "failed")
        counts = (len(self.lines), *(self.count(state) for state in STATES[2:]))
        assert (batch.status, counts_of(batch)) == (self.status, counts)
        assert (batch.input_tokens, batch.cached_tokens, batch.output_tokens) == (3 * n, n, 5 * n)
        assert [getattr(batch, f"{of}_at") for of in TIMES] == [self.times.get(of) for of in TIMES]
        errors = [asdict(error) for error in ERRORS]
        assert batch.errors == (errors if self.status == "failed" else None)
        outputs = self.count("completed") if self.status in ENDS else 0
        failed = len(self.lines) - outputs if self.status in ENDS else 0
        files = batch.output_file_id is not None, batch.error_file_id is not None
        assert files == (outputs > 0, failed > 0)


class Walk:
    """Two workers on one store, which on SQLite crash together."""

    def __init__(self, url: str, seed: int) -> None:
        """`url`: of PostgreSQL; none: SQLite."""
        self.url = url
        self.rng = random.Random(seed)
        self.now_s = LEASE_S
        self.jobs: dict[str, Job] = {}
        self.seen: list[Item] = []
        self.folder = tempfile.TemporaryDirectory(dir=FASTEST)
        if url:
            emptied(open_store(url)).close()
        self.open()

    def open(self) -> None:
        self.store = open_store(self.url or self.folder.name)
        self.commits_left = float("inf")
        write = self.store._database.write

        @contextmanager
        def counted(*, durable: bool) -> Iterator[Session]:
            with write(durable=durable) as session:
                yield session
                self.commits_left -= 1
                if self.commits_left < 0:
                    raise CrashError

        self.store._database.write = counted  # type: ignore[method-assign]

    def crash(self) -> None:
        self.store.close()
        self.open()
        self.give_back(lambda line: True, lost=not self.url)
        for job in self.jobs.values():
            job.worker = ""
        for worker in "ab" if self.url else "":
            self.store.items.release(worker)

    @contextmanager
    def holding(self, job: Job, worker: str, *statuses: BatchStatus) -> Iterator[None]:
        """A step of a worker, which may not hold the batch, and may crash before some commit."""
        held = job.worker == worker and job.status in statuses
        self.commits_left = self.rng.choice([0, 1, 2, 5, *[float("inf")] * 8])
        try:
            with nullcontext() if held else pytest.raises(LeaseLostError):
                yield
        except CrashError:
            self.crash()
        self.commits_left = float("inf")

    def lines(self, state: ItemState) -> list[Line]:
        return [line for job in self.jobs.values() for line in job.lines if line.state == state]

    def line_of(self, item: Item, worker: str) -> Line | None:
        """Where this worker holds it under this lease."""
        if (job := self.jobs.get(item.batch.id)) is None:
            return None
        line = job.lines[item.lease.line - 1]
        held = (line.state, line.attempt, line.worker) == ("running", item.lease.attempt, worker)
        return line if held else None

    def give_back(self, which: Callable[[Line], bool], lost: bool) -> int:
        count = 0
        for job in self.jobs.values():
            for line in job.lines:
                if line.state == "running" and which(line):
                    line.state = "cancelled" if job.status == "cancelling" else "pending"
                    line.lost += lost
                    count += 1
        return count

    def leased(self, claimed: Batch | None, worker: str, due: list[Job]) -> Job | None:
        """The oldest that no other worker holds."""
        free = [job for job in due if job.worker in ("", worker) or job.until <= self.now_s]
        assert (claimed and claimed.id) == (free[0].id if free else None)
        if not free:
            return None
        free[0].worker, free[0].until = worker, self.now_s + LEASE_S
        return free[0]

    @property
    def worker(self) -> str:
        return self.rng.choice("ab")

    @property
    def model(self) -> str:
        return self.rng.choice([MODEL, MODEL, MODEL, "another"])

    # --- batches ----------------------------------------------------------------------------

    def create(self) -> None:
        if sum(job.status not in ENDS for job in self.jobs.values()) < 4:
            model, window_s = self.model, LEASE_S * self.rng.choice([2, 9, 30])
            batch = create(self.store, model=model, expires_at=self.now_s + window_s)
            self.jobs[batch.id] = Job(batch.id, model, self.now_s + window_s)

    def validate(self) -> None:
        worker, model = self.worker, self.model
        jobs = self.jobs.values()
        due = [job for job in jobs if (job.status, job.model) == ("validating", model)]
        claimed = self.store.batches.claim_validation(worker, model, self.now_s)
        if (job := self.leased(claimed, worker, due)) is not None:
            job.added = 0
            self.validate_on(job, worker)

    def validate_on(self, job: Job, worker: str) -> None:
        then = self.rng.choice(["start", "start", "start", "fail", "give up", ""])
        items = [NewItem(n, f"id-{n}", b"x" * n) for n in range(1, self.rng.randint(2, 7))]
        with self.holding(job, worker, "validating"):
            assert self.store.items.add(job.id, worker, items) == []
            job.added = max(job.added, len(items))
            if then == "start":
                self.store.batches.start(job.id, worker, self.now_s)
                job.lines = [Line() for _ in range(job.added)]
                job.enter("in_progress", self.now_s)
            elif then == "fail":
                self.store.batches.fail(job.id, worker, ERRORS, self.now_s)
                job.enter("failed", self.now_s)
            elif then == "give up":
                self.store.batches.give_up(job.id, worker)
                job.added = 0

    def finalise(self) -> None:
        worker, statuses = self.worker, ("in_progress", "finalizing", "cancelling")
        due = [job for job in self.jobs.values() if job.status in statuses and not job.open]
        claimed = self.store.batches.claim_finalisation(worker, self.now_s)
        if (job := self.leased(claimed, worker, due)) is not None:
            if job.status == "in_progress":
                job.status, job.times["finalizing"] = "finalizing", self.now_s
            self.finalise_on(job, worker)

    def finalise_on(self, job: Job, worker: str) -> None:
        then = self.rng.choice(["end", "end", "give up"])
        with self.holding(job, worker, "finalizing", "cancelling"):
            if then != "end":
                self.store.batches.give_up(job.id, worker)
                return
            batch = self.store.batches.finalise(job.id, worker, self.now_s, unrun)
            job.enter(job.outcome or "completed", self.now_s)
            output = lines_of(self.store, OWNER, batch.output_file_id, self.now_s)
            errors = lines_of(self.store, OWNER, batch.error_file_id, self.now_s)
            lines = list(enumerate(job.lines, start=1))
            assert [(one["custom_id"], one["attempt"]) for one in output] == [
                (f"id-{number}", line.attempt)
                for number, line in lines
                if line.state == "completed"
            ]
            assert [(one["custom_id"], one.get("why", "failed")) for one in errors] == [
                (f"id-{number}", line.state) for number, line in lines if line.state != "completed"
            ]

    def go_on(self) -> None:
        """With a batch that may be another's by now."""
        for job in self.rng.sample([*self.jobs.values()], min(1, len(self.jobs))):
            steps = [self.validate_on, self.finalise_on][: 1 + (job.status != "validating")]
            self.rng.choice(steps)(job, self.worker)

    def cancel(self) -> None:
        for job in self.rng.sample([*self.jobs.values()], min(1, len(self.jobs))):
            if job.status in ("finalizing", *ENDS):
                with pytest.raises(StatusConflictError, match=job.status):
                    self.store.batches.cancel(OWNER, job.id, self.now_s)
                return
            if job.status != "cancelling":
                job.end("cancelled", "pending")
                job.enter("cancelling", self.now_s)
                job.outcome = "cancelled"
            job.require_shown(self.store.batches.cancel(OWNER, job.id, self.now_s))

    def end_due(self) -> None:
        count = 0
        for job in self.jobs.values():
            over = job.expires_at <= self.now_s
            if job.status == "cancelling":
                if job.open and (over or job.times["cancelling"] <= self.now_s - CANCELLING_S):
                    job.end("cancelled", "running")
                    count += 1
            elif over and (
                job.status == "validating" or (job.status == "in_progress" and job.open)
            ):
                job.end("expired", "pending", "running")
                job.enter("finalizing", self.now_s)
                job.outcome = "expired"
                count += 1
        assert self.store.batches.end_due(self.now_s) == count

    def sweep(self) -> None:
        before_s = self.now_s - LEASE_S
        while self.store.sweep(self.now_s, before_s):
            pass
        for job in list(self.jobs.values()):
            if job.status in ENDS and job.times[job.status] <= before_s:
                del self.jobs[job.id]
        of_open = sum(6 for job in self.jobs.values() if job.status not in ENDS)
        assert rows_of(self.store, BatchItem) <= of_open

    # --- lines ------------------------------------------------------------------------------

    def claim(self) -> None:
        worker, model, n = self.worker, self.model, self.rng.randint(0, 6)
        most_bytes = self.rng.choice([0, 3, 6, 99])
        jobs = [j for j in self.jobs.values() if (j.status, j.model) == ("in_progress", model)]
        pending = [
            (job, number, line)
            for job in sorted(jobs, key=lambda job: job.expires_at)
            for number, line in enumerate(job.lines, start=1)
            if line.state == "pending"
        ]
        fit = sum(end <= most_bytes for end in accumulate(number for _, number, _ in pending[:n]))
        expected = []
        for job, number, line in pending[:n][: max(1, fit)]:
            line.state, line.worker, line.until = "running", worker, self.now_s + LEASE_S
            line.attempt += 1
            shown = job.id, number, line.attempt, line.lost, number, job.expires_at
            expected.append(shown)
        items = self.store.items.claim(worker, model, n, self.now_s, most_bytes)
        assert [
            (one.batch.id, *one.lease[1:], one.lost, len(one.body), one.batch.expires_at)
            for one in items
        ] == expected
        self.seen += items

    def save(self) -> None:
        """Also what others hold, what was lost, and another result of the same."""
        worker, good, count = self.worker, self.rng.random() < 0.7, 0
        chosen = self.rng.sample(self.seen, self.rng.randint(0, len(self.seen)))
        for item in chosen:
            if line := self.line_of(item, worker):
                line.state = "completed" if good else "failed"
                count += 1
        results = [result(item, so) for so in (good, not good) for item in chosen]
        assert self.store.items.save(worker, results) == count

    def heartbeat(self) -> None:
        worker, known = self.worker, [item.lease for item in self.seen]
        held = {item.lease for item in self.seen if self.line_of(item, worker)}
        assert self.store.items.heartbeat(worker, known, self.now_s) == held
        jobs = [job for job in self.jobs.values() if job.worker == worker]
        lines = [line for item in self.seen if (line := self.line_of(item, worker))]
        leased: list[Line | Job] = [*lines, *jobs]
        for one in leased:
            one.until = self.now_s + LEASE_S

    def release(self) -> None:
        worker = self.worker
        count = self.give_back(lambda line: line.worker == worker, lost=False)
        assert self.store.items.release(worker) == count
        for job in self.jobs.values():
            job.worker = "" if job.worker == worker else job.worker

    def withdraw(self) -> None:
        worker, known = self.worker, [item.lease for item in self.seen]
        cancelling = {job.id for job in self.jobs.values() if job.status == "cancelling"}
        of_cancelling = {item.lease for item in self.seen if item.batch.id in cancelling}
        assert self.store.items.withdraw(worker, known) == of_cancelling
        for id in cancelling:
            for line in self.jobs[id].lines:
                if (line.state, line.worker) == ("running", worker):
                    line.state = "cancelled"

    def recover(self) -> None:
        count = self.give_back(lambda line: line.until <= self.now_s, lost=True)
        assert self.store.items.recover(self.now_s) == count

    def wait(self) -> None:
        self.now_s += LEASE_S / 2
        if self.rng.random() < 0.5:
            self.end_due()

    # --- the walk ---------------------------------------------------------------------------

    def go(self, steps: int) -> None:
        rare = [self.crash, self.cancel, self.release, self.sweep, self.go_on, self.withdraw]
        rare += [self.heartbeat, self.recover, self.end_due, self.wait, self.wait]
        often = [self.create, self.validate, self.claim, self.claim, self.save, self.finalise]
        for step in range(steps):
            self.rng.choice([*rare, *often, *often])()
            self.seen = self.seen[-12:]
            if step % 2:  # a wrong row stays wrong
                self.require_account()
        while not all(job.status in ENDS for job in self.jobs.values()):
            self.rng.choice(
                [*often[1:], self.recover, self.wait]
            )()  # however it went, workers that live bring all to an end
            self.require_account()
        self.store.close()
        self.folder.cleanup()

    def require_account(self) -> None:
        jobs = list(self.jobs.values())
        shown = self.store.batches.list(OWNER, limit=99).data
        for job, batch in zip(reversed(jobs), shown, strict=True):
            assert job.id == batch.id
            job.require_shown(batch)
        deadlines = [job.expires_at for job in jobs if job.status == "in_progress" and job.open]
        assert self.store.progress() == BatchProgress(
            Counter(job.status for job in jobs),
            {state: len(self.lines(state)) for state in STATES},
            min(deadlines, default=None),
        )


# PostgreSQL is sent a thousand statements an example and waits for each
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("sqlite", 1500),
        ("postgresql", 200),
        pytest.param("sqlite", 50_000, marks=pytest.mark.long),
        pytest.param("postgresql", 5_000, marks=pytest.mark.long),
    ],
)
def test_every_line_is_recorded_once_whatever_happens(
    kind: str, steps: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, least in LEAST.items():
        module, _, constant = name.partition(".")
        monkeypatch.setattr(sys.modules[f"deferred.store.{module}"], constant, least)
    url = "" if kind == "sqlite" else request.getfixturevalue("shared_postgresql_url")
    Walk(url, seed=1).go(steps)
