"""Measuring sides in turns, and the confidence of their ratio.

A machine drifts by a quarter within minutes, and others use it meanwhile. So the compared sides
take turns, in reverse order from round to round, and ratios are taken within a round."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tqdm import tqdm

from client.analysis.statistics import paired_ratio

ROUNDS = 3
# Used by others; with more, nothing is recorded. On a virtual machine whose hypervisor always takes
# more, say so with the variable of this name. Each recording states what others used.
QUIET_CORES = float(os.environ.get("QUIET_CORES", "0.05"))
Side = TypeVar("Side")
Figure = TypeVar("Figure")


def in_turns(
    sides: Mapping[Side, Callable[[], Figure]], rounds: int = ROUNDS, shown: str | None = None
) -> dict[Side, list[Figure]]:
    """Each side's figures, one per round. With ``shown``, the title of a progress bar, the garbage
    of a turn, such as its model, is collected before the next one."""
    found: dict[Side, list[Figure]] = {side: [] for side in sides}
    with tqdm(
        total=rounds * len(sides), desc=shown, disable=shown is None, file=sys.stderr
    ) as bar:  # fmt: skip
        for number in range(rounds):
            for side in list(sides)[:: -1 if number % 2 else 1]:
                if shown is not None:
                    gc.collect()
                found[side].append(sides[side]())
                bar.update()
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
        a_tie = self.low is not None and self.tie
        return f"{self:.2f}{', a tie' if a_tie else ''}"

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
