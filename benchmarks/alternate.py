"""Measuring sides in turns, and the confidence of their ratio.

A machine drifts by a quarter within minutes, and others use it meanwhile. So the compared sides
take turns, in reverse order from round to round, and ratios are taken within a round."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from client.analysis.statistics import paired_ratio

ROUNDS = 3
# Used by others; with more, nothing is recorded. On a virtual machine whose hypervisor always takes
# more, say so with the variable of this name. Each recording states what others used.
QUIET_CORES = float(os.environ.get("QUIET_CORES", "0.05"))
Side = TypeVar("Side")
Figure = TypeVar("Figure")


def in_turns(
    sides: Mapping[Side, Callable[[], Figure]], rounds: int = ROUNDS
) -> dict[Side, list[Figure]]:
    """Each side's figures, one per round."""
    found: dict[Side, list[Figure]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: -1 if number % 2 else 1]:
            found[side].append(sides[side]())
    return found


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean over the rounds and its 95 % interval; a single round has none.

    ``drift`` is how far apart two rounds of one side were, as a factor.
    """

    value: float
    low: float | None
    high: float | None
    drift: float

    @property
    def tie(self) -> bool:
        """A lead smaller than the drift, or one that may be none."""
        certain = self.low is not None and self.high is not None and not self.low <= 1 <= self.high
        return not certain or max(self.value, 1 / self.value) <= self.drift

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}, one round: no interval"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]{', a tie' if self.tie else ''}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Of two sides' figures, round by round. ValueError where one is missing or not positive."""
    found = paired_ratio(ours, theirs)
    if found is None:
        raise ValueError(f"no ratio of {list(ours)} and {list(theirs)}")
    drift = max(max(side) / min(side) for side in (ours, theirs))
    return Ratio(found.value, found.low, found.high, drift)
