"""The observations of a run, request by request, and the raw files that keep them.

Plain data: metrics, gates, plots and reports read these records and measure nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from client.workloads.workload_file import Workload


@dataclass(frozen=True, slots=True)
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
    first_s: float | None
    end_s: float | None
    left_s: float
    deliveries: tuple[tuple[float, int], ...]
    prompt_tokens: int | None
    output_tokens: int | None
    queue_s: float | None
    first_from: str
    failure: str | None
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

    ``in_flight`` are samples (seconds, requests sent and not ended). ``counted`` states the
    basis of token counts. ``interrupted`` says why the run ended early; what was measured is kept.
    ``not_begun`` says why nothing was sent at all. ``began_unix_s`` is the start by the wall clock.
    ``name``: each request was sent with the X-Request-Id NAME/INDEX.
    """

    target: str
    workload: Workload
    outcomes: tuple[Outcome, ...]
    in_flight: tuple[tuple[float, int], ...]
    wall_s: float
    counted: str
    streamed: bool
    interrupted: str | None = None
    not_begun: str | None = None
    began_unix_s: float | None = None
    name: str = ""

    def request_id(self, index: int) -> str:
        return f"{self.name}/{index}"

    @staticmethod
    def never_begun(target: str, workload: Workload, why: str) -> Run:
        return Run(target, workload, (), (), 0.0, "nothing", streamed=True, not_begun=why)

    @property
    def window_end_s(self) -> float:
        """The end of the sending window; the last response if everything is sent at once."""
        if self.interrupted:
            return min(self.workload.duration_s or self.wall_s, self.wall_s)
        if self.workload.users is None and self.workload.duration_s > 0:
            return self.workload.duration_s
        return max((o.end_s for o in self.outcomes if o.end_s is not None), default=self.wall_s)


REQUEST_COLUMNS = (
    "run", "request", "class", "requested_tokens", "prompt_tokens", "output_tokens", "intended_s",
    "sent_s", "first_token_s", "end_s", "server_queue_s", "first_token_from", "failure",
)  # fmt: skip


def write_requests(rows: Iterable[tuple[str, Outcome]], path: Path) -> None:
    """A line a request; the run's name in the first column."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(REQUEST_COLUMNS)
        for run, o in rows:
            writer.writerow(
                (
                    run, o.index, o.service, o.requested_tokens, o.prompt_tokens, o.output_tokens,
                    _seconds(o.intended_s), _seconds(o.sent_s), _seconds(o.first_s),
                    _seconds(o.end_s), _seconds(o.queue_s), o.first_from, o.failure or "",
                )
            )  # fmt: skip


def write_deliveries(rows: Iterable[tuple[str, Outcome]], path: Path) -> None:
    """A line for each event that carried tokens."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "request", "at_s", "tokens"))
        for run, o in rows:
            writer.writerows((run, o.index, _seconds(at), tokens) for at, tokens in o.deliveries)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
