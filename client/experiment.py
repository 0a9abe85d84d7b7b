"""An experiment: sides that do the same work in turns, and what is measured of their turns.

A machine drifts by a quarter within minutes, and others use it meanwhile. So sides take turns, in
reverse order from round to round, and ratios are taken within a round.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tqdm import tqdm

Side = TypeVar("Side")


def in_turn(sides: Sequence[Side], round_number: int) -> Sequence[Side]:
    """The order of a round: so, and reversed, in turn (ABBA), so that a steady drift cancels."""
    return sides[:: -1 if round_number % 2 else 1]


@dataclass(frozen=True, slots=True)
class Experiment:
    """``sides``: a turn of each, with the work of its round. ``work`` makes that work from the
    number of the round.

    ``metrics``: figures of a turn, by name and unit, such as ``tokens_per_s``; the first is
    compared with that of the side ``to``. ``of``: what distinguishes it from others in a report, by
    column.
    """

    sides: Mapping[str, Callable[[Any], Any]]
    metrics: Mapping[str, Callable[[Any], float]]
    to: str
    work: Callable[[int], Any] = int
    of: Mapping[str, object] = field(default_factory=dict)

    def run(
        self, rounds: int, shown: str | None = None, enough: Callable[[Found], bool] | None = None
    ) -> Found:
        """``shown``, the title of a progress bar, is for sides that leave garbage, such as a model:
        it is collected before the next turn. ``enough`` ends it before all rounds."""
        found = Found(self, {side: [] for side in self.sides})
        total = rounds * len(self.sides)
        with tqdm(total=total, desc=shown, disable=shown is None, file=sys.stderr) as bar:
            for round_number in range(rounds):
                work = self.work(round_number)
                for side in in_turn(list(self.sides), round_number):
                    if shown is not None:
                        gc.collect()
                    found.turns[side].append(self.sides[side](work))
                    bar.update()
                if enough is not None and enough(found):
                    break
        return found


@dataclass(frozen=True, slots=True)
class Found:
    """Each side's turns, one per round."""

    experiment: Experiment
    turns: Mapping[str, list[Any]]

    def figures(self, side: str, metric: str | None = None) -> list[float]:
        """Of each round; of the first metric unless one is named."""
        of = self.experiment.metrics[metric or next(iter(self.experiment.metrics))]
        return [of(turn) for turn in self.turns[side]]
