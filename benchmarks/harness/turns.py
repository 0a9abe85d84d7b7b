"""Ratios of the sides of an experiment (client/experiment.py), and whether a lead is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from client.analysis.statistics import Interval, paired_ratio
from client.experiment import Experiment, Found

Side = TypeVar("Side")
Figure = TypeVar("Figure")


def in_turns(
    sides: Mapping[Side, Callable[[], Figure]], rounds: int, shown: str | None = None
) -> dict[Side, list[Figure]]:
    """An experiment's turns, one per round and side, whose figures are computed elsewhere."""
    names = {str(number): side for number, side in enumerate(sides)}
    turns = {name: (lambda _, side=side: sides[side]()) for name, side in names.items()}
    found = Experiment(turns, {}, "").run(rounds, shown).turns
    return {names[name]: figures for name, figures in found.items()}


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

    def told(self, digits: int = 2) -> str:
        """The value, its interval, and whether it is a tie."""
        return f"{self:.{digits}f}{', a tie' * (self.low is not None and self.tie)}"

    __str__ = told

    def __format__(self, spec: str) -> str:
        """The value and its interval, both in this format of a number; else as `str` does."""
        if not spec:
            return str(self)
        value = format(self.value, spec)
        if self.low is None or self.high is None:
            return f"{value}, one round: no interval"
        return f"{value} [{format(self.low, spec)}, {format(self.high, spec)}]"


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
