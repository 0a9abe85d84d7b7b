"""The results of an experiment, as plain records: a run with its figures, a server that was lost,
the calibration to which the loads refer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from client.analysis.fairness import Isolated
from client.analysis.gates import Verdict
from client.analysis.metrics import Measured, Objectives
from client.analysis.statistics import Interval
from client.load.records import Run

MODES = ("nobatch", "static", "dynamic")
NO_WAIT = "static:nowait"  # static batching with --max-wait-ms 0
COMPARED = ("nobatch", "static", NO_WAIT, "dynamic")


@dataclass(frozen=True, slots=True)
class Calibration:
    """One request at a time on the baseline: load 1 is ``capacity`` requests a second."""

    baseline: str
    capacity: float
    isolated: Isolated
    ttft_s: float
    longest_s: float
    start_s: float
    streamed: bool
    requests: int

    def objectives(self, multiple: float) -> Objectives:
        """TTFT and TPOT of a request alone, times ``multiple``: the same demand on any machine."""
        return Objectives(ttft_s=multiple * self.ttft_s, tpot_s=multiple * self.isolated.output_s)


@dataclass(frozen=True, slots=True)
class Job:
    """One planned run. ``repeat`` marks the control: its contestant a second time."""

    contestant: str
    load: float
    seed: int
    repeat: bool

    @property
    def name(self) -> str:
        ending = "-repeat" if self.repeat else ""
        return f"{self.contestant}-load{self.load:g}-seed{self.seed}{ending}"


@dataclass(frozen=True, slots=True)
class Played:
    """One run, and the server's statistics of it."""

    job: Job
    run: Run
    server: dict[str, Any] | None
    iterations: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Result:
    """A run with its figures, measured over the stretch that all runs of its workload share."""

    job: Job
    run: Run
    measured: Measured
    verdict: Verdict
    server: dict[str, Any] | None
    iterations: dict[str, Any] | None

    @property
    def contestant(self) -> str:
        return self.job.contestant

    @property
    def load(self) -> float:
        return self.job.load

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def repeat(self) -> bool:
        return self.job.repeat

    @property
    def name(self) -> str:
        return self.job.name


@dataclass(frozen=True, slots=True)
class Loss:
    """A contestant that failed and was left out from then on; ``reason`` may hold its log's end."""

    contestant: str
    when: str
    reason: str

    @property
    def headline(self) -> str:
        return f"{self.contestant} failed {self.when}: {self.reason.splitlines()[0]}"


@dataclass(frozen=True, slots=True)
class Pair:
    """One contestant over another at one load, paired over seeds; medians for latencies.

    Latencies only where both keep up: beyond, they reflect the length of the run. ``throughput``
    only of a control, which has the same contestant on both sides, where it is saturated: between
    contestants it is `LimitRatio` that compares it.
    """

    of: str
    over: str
    load: float
    throughput: Interval | None
    ttft: Interval | None
    tpot: Interval | None
    e2e: Interval | None


@dataclass(frozen=True, slots=True)
class LimitRatio:
    """The limit of one contestant over that of another."""

    of: str
    over: str
    throughput: Interval


@dataclass(frozen=True, slots=True)
class Bracket:
    """The capacity of a contestant as far as a comparison shows, in loads.

    ``passed`` is the largest load at which the stated share met the objectives, None where none
    did; ``failed`` the smallest beyond it that did not, None where all did.
    """

    contestant: str
    passed: float | None
    failed: float | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A contestant's limit: output tokens a second at the load where it delivered most.

    ``requests`` ended there, in runs that were measured for ``seconds`` altogether, a control's
    included, as in the ratios.
    """

    contestant: str
    load: float
    throughput: Interval
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Headline:
    """What a comparison found: capacity, throughput at the limit, latency where both keep up.

    ``share`` of the requests must meet ``objectives``. ``limits`` are of contestants that some load
    saturated, ``limit_ratios`` of every two of them. ``controls`` compare a contestant with itself:
    how far the machine alone moves each figure.
    """

    objectives: Objectives
    share: float
    capacities: tuple[Bracket, ...]
    limits: tuple[Limit, ...]
    limit_ratios: tuple[LimitRatio, ...]
    pairs: tuple[Pair, ...]
    controls: tuple[Pair, ...]
