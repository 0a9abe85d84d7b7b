"""The search for the largest rate that passes: how a rate is judged, and which is tried next.

Pure: probes are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from client.analysis.gates import VALID, Backlog, keeping_up
from client.analysis.metrics import RunFigures
from client.analysis.statistics import (
    Interval,
    excludes,
    exponential,
    mean_interval,
    share_interval,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of all runs of a rate: requests ``asked``, and those that met the objectives.

    ``good`` by latencies from the intended times, ``good_sent`` from the sends. If the client was
    late, the one is too small and the other too large, so both must lead to the same decision.
    """

    asked: int
    good: float
    good_sent: float
    keeps_up: bool

    def passes(self, share: float) -> bool:
        return self.keeps_up and self.good >= share * self.asked

    def agrees(self, share: float) -> bool:
        """Whether it makes no difference that the client was late."""
        return not self.keeps_up or (self.good_sent >= share * self.asked) == self.passes(share)

    def decided(self, share: float) -> bool:
        """Whether another run is needless: the binomial intervals exclude the share."""
        both = (share_interval(good, self.asked) for good in (self.good, self.good_sent))
        sure = all(excludes(interval, share) for interval in both)
        return not self.keeps_up or (sure and self.agrees(share))


def evidence(played: Sequence[tuple[RunFigures, Backlog]]) -> Evidence:
    """All runs of one rate together."""
    runs = [m for m, _ in played]
    return Evidence(
        asked=max(sum(m.arrived for m in runs), 1),
        good=sum((m.attained or 0.0) * m.arrived for m in runs),
        good_sent=sum((m.attained_sent or 0.0) * m.arrived for m in runs),
        keeps_up=keeping_up([backlog for _, backlog in played]).verdict == VALID,
    )


@dataclass(frozen=True, slots=True)
class SeedBracket:
    """The highest rate that passed and the lowest that failed, of one seed."""

    seed: int
    passed: float
    failed: float


class SearchError(RuntimeError):
    """Why a search ended without an answer; ``verdict`` in the words of the gates."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


def bracket(
    seed: int, start: float, precision: float, probe: Callable[[float], bool]
) -> SeedBracket:
    """Doubling (or halving) from ``start``, then bisection until failed/passed <= 1 + precision.

    If a probe is undecided, the bracket stays as wide as it is.
    """
    rate = start
    if probe(rate):
        while probe(2 * rate):
            rate *= 2
        passed, failed = rate, 2 * rate
    else:
        while not probe(rate / 2):
            rate /= 2
            if rate < start / 2**12:
                raise SearchError(
                    VALID,
                    f"the objectives are not met at {rate:.3g} requests/s either; loosen them",
                )
        passed, failed = rate / 2, rate
    while failed / passed > 1 + precision:
        middle = math.sqrt(passed * failed)
        try:
            passed, failed = (middle, failed) if probe(middle) else (passed, middle)
        except SearchError:
            break
    return SeedBracket(seed, passed, failed)


def over_seeds(brackets: Sequence[SeedBracket]) -> Interval:
    """Geometric mean of the brackets' middles and its t interval over seeds."""
    return exponential(mean_interval([math.log(b.passed * b.failed) / 2 for b in brackets]))
