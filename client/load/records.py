"""The observations of a run, request by request, and the raw files that keep them.

Plain data: metrics, gates, plots and reports read these records and measure nothing. Whole runs are
on disk with every delivery, so that figures can be computed again: one line of JSON for each run,
compressed. Their workloads are in files of the same folder: ``workload.jsonl``, or those in
``workloads/``.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload, read_workload

RUNS = "runs.jsonl.gz"


@dataclass(slots=True)
class Outcome:
    """One request as the client saw it; all times in seconds from the start of the run.

    ``intended_s`` is None in a closed loop. ``deliveries`` holds (time, tokens) of each event
    that carried tokens; ``unplaced`` tokens have no known time. ``left_s`` is when the client was
    done with the request, for any reason. ``failure`` is None for a complete response; requests
    still running when the run was cut have ``unfinished``. Without streaming ``first_s`` is the
    server's figure, and ``first_from`` says so.
    """

    index: int
    service: str
    deadline_s: float | None
    requested_tokens: int
    intended_s: float | None
    sent_s: float
    first_s: float | None = None
    end_s: float | None = None
    left_s: float = 0.0
    deliveries: tuple[tuple[float, int], ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    queue_s: float | None = None
    first_from: str = "stream"
    failure: str | None = None
    unfinished: bool = False
    unplaced: int = 0

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def origin_s(self) -> float:
        """The time from which latencies count: the intended time, if there is one."""
        return self.sent_s if self.intended_s is None else self.intended_s


@dataclass(frozen=True, slots=True)
class Run:
    """One workload sent to one target.

    ``counted`` states the basis of token counts. ``interrupted`` says why the run ended early;
    what was measured is kept. ``name``: each request was sent with the X-Request-Id NAME/INDEX.
    """

    target: str
    workload: Workload
    outcomes: tuple[Outcome, ...]
    wall_s: float
    counted: str
    streamed: bool
    interrupted: str | None = None
    not_begun: str | None = None
    began_unix_s: float | None = None
    name: str = ""

    @property
    def window_end_s(self) -> float:
        """The end of the sending window; the last response if everything is sent at once."""
        if self.interrupted:
            return min(self.workload.duration_s or self.wall_s, self.wall_s)
        if self.workload.users is None and self.workload.duration_s > 0:
            return self.workload.duration_s
        return max((o.end_s for o in self.outcomes if o.end_s is not None), default=self.wall_s)


# of requests.csv, and the fields that they are
_COLUMNS = {
    "request": "index", "class": "service", "requested_tokens": "requested_tokens",
    "prompt_tokens": "prompt_tokens", "output_tokens": "output_tokens",
    "intended_s": "intended_s", "sent_s": "sent_s", "first_token_s": "first_s", "end_s": "end_s",
    "server_queue_s": "queue_s", "first_token_from": "first_from", "failure": "failure",
}  # fmt: skip


def write_requests(rows: Iterable[tuple[str, Outcome]], path: Path) -> None:
    """A line a request; the run's name in the first column."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("run", *_COLUMNS))
        for run, outcome in rows:
            values = (getattr(outcome, name) for name in _COLUMNS.values())
            told = (f"{value:.6f}" if isinstance(value, float) else value for value in values)
            writer.writerow((run, *told))


class RawError(ValueError):
    """A file of runs that cannot be read."""


def make_folder(out: Path) -> None:
    """That of `--out`. SpecError if it cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"--out {out}: {error.strerror}") from None


def write_raw(folder: Path, runs: Iterable[tuple[dict[str, Any], Run]]) -> None:
    """Each run with further facts about it, which must be JSON."""
    with gzip.GzipFile(folder / RUNS, "wb", mtime=0) as file:
        for about, run in runs:
            fields = {name: getattr(run, name) for name in Run.__slots__}
            fields["workload"] = run.workload.sha256
            fields["outcomes"] = [
                {name: getattr(o, name) for name in Outcome.__slots__} for o in run.outcomes
            ]
            file.write(json.dumps({**about, "run": fields}).encode() + b"\n")


def read_raw(folder: Path) -> Iterator[tuple[dict[str, Any], Run]]:
    """The runs in a folder. RawError or SpecError say what is wrong."""
    path = folder / RUNS
    files = [*folder.glob("workload.jsonl"), *sorted(folder.glob("workloads/*.jsonl"))]
    workloads = {w.sha256: w for w in map(read_workload, files)}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                about = json.loads(line)
                run = about.pop("run")
                for values in run["outcomes"]:
                    values["deliveries"] = tuple(map(tuple, values["deliveries"]))
                outcomes = tuple(Outcome(**values) for values in run["outcomes"])
                run.pop("in_flight", None)  # of earlier versions
                run |= {"workload": workloads[run["workload"]], "outcomes": outcomes}
                yield about, Run(**run)
    except OSError as error:
        raise RawError(f"{path}: {error.strerror or error}") from None
    except (
        ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, zlib.error
    ) as error:  # fmt: skip
        raise RawError(f"{path}: not a file of runs that this version wrote: {error}") from None
