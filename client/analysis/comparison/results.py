"""The results of an experiment, as plain records: a run with its figures, a server that was lost,
the calibration to which the loads refer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from client.analysis.gates import RunVerdict
from client.analysis.metrics import Isolated, Objectives, RunFigures
from client.analysis.statistics import Interval
from client.load.records import Run


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
    """One planned run. ``repeat`` marks the control: its system a second time."""

    system: str
    load: float
    seed: int
    repeat: bool

    @property
    def name(self) -> str:
        ending = "-repeat" if self.repeat else ""
        return f"{self.system}-load{self.load:g}-seed{self.seed}{ending}"


@dataclass(frozen=True, slots=True)
class Played:
    """One run, and the server's statistics of it."""

    job: Job
    run: Run
    server: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Result(Played):
    """A run with its figures, measured over the window that all runs of its workload share."""

    measured: RunFigures
    verdict: RunVerdict


@dataclass(frozen=True, slots=True)
class Loss:
    """A system that failed and was left out from then on; ``reason`` may hold its log's end."""

    system: str
    when: str
    reason: str

    @property
    def headline(self) -> str:
        first, *log = self.reason.splitlines()
        return f"{self.system} failed {self.when}: {first}{f' {log[-1]}' if log else ''}"


@dataclass(frozen=True, slots=True)
class Pair:
    """One system over another at one load, paired over seeds.

    ``ratios`` are by the key of each figure in `PAIRED`, of latencies the medians; those of p99 by
    ``ttft_p99``.
    Latencies only where both keep up: beyond, they reflect the length of the run. Throughput only
    of a control, which has the same system on both sides, where it is saturated: between systems it
    is `LimitRatio` that compares it.
    """

    of: str
    over: str
    load: float
    ratios: Mapping[str, Interval | None]


@dataclass(frozen=True, slots=True)
class LimitRatio:
    """The limit of one system over that of another."""

    of: str
    over: str
    throughput: Interval


@dataclass(frozen=True, slots=True)
class Bracket:
    """The capacity of a system as far as a comparison shows, in loads.

    ``passed`` is the largest load at which the stated share met the objectives, None where none
    did; ``failed`` the smallest beyond it that did not, None where all did.
    """

    system: str
    passed: float | None
    failed: float | None


@dataclass(frozen=True, slots=True)
class Peak:
    """A system's limit: output tokens a second at the load where it delivered most.

    ``requests`` ended there, in runs that were measured for ``seconds`` altogether, a control's
    included, as in the ratios.
    """

    system: str
    load: float
    throughput: Interval
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Headline:
    """What a comparison found: capacity, throughput at the limit, latency where both keep up.

    ``share`` of the requests must meet ``objectives``. ``limits`` are of systems that some load
    saturated, ``limit_ratios`` of every two of them. ``controls`` compare a system with itself:
    how far the machine alone moves each figure.
    """

    objectives: Objectives
    share: float
    capacities: tuple[Bracket, ...]
    limits: tuple[Peak, ...]
    limit_ratios: tuple[LimitRatio, ...]
    pairs: tuple[Pair, ...]
    controls: tuple[Pair, ...]
