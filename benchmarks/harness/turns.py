"""Ratios of the sides of an experiment (client/experiment.py), and whether a lead is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client.analysis.statistics import Interval, paired_ratio
from client.experiment import Found


@dataclass(frozen=True, slots=True)
class Ratio(Interval):
    """The geometric mean over the rounds and its 95 % interval; a single round has none.

    ``drift`` is how far apart two rounds of one side were, as a factor.
    """

    drift: float

    @property
    def tie(self) -> bool:
        """A lead smaller than the drift, or one that may be none."""
        certain = self.low is not None and self.high is not None and not self.low <= 1 <= self.high
        return not certain or max(self.value, 1 / self.value) <= self.drift

    def __format__(self, spec: str) -> str:
        """The value and its interval, both in this format of a number, and whether it is a tie."""
        if self.low is None or self.high is None:
            return f"{format(self.value, spec)}, one round: no interval"
        told = [format(value, spec) for value in (self.value, self.low, self.high)]
        return f"{told[0]} [{told[1]}, {told[2]}]{', a tie' * self.tie}"

    def __str__(self) -> str:
        return format(self, ".2f")


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of two sides' figures, round by round. ValueError where one is missing or not positive."""
    found = paired_ratio(ours, theirs)
    if found is None:
        raise ValueError(f"no ratio of {list(ours)} and {list(theirs)}")
    drift = max(max(side) / min(side) for side in (ours, theirs))
    return Ratio(found.value, found.low, found.high, drift)


def ratio_of(found: Found, side: str, to: str | None = None) -> Ratio:
    """Of a side's first metric to that of ``to``, by default the experiment's."""
    return ratio(found.figures(side), found.figures(to or found.experiment.to))
