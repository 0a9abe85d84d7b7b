"""What the engine's driver is told: an iteration is in flight, or nothing can be started before a
time. No clock and no thread: the driver waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference import Inference
from records import PlannedWork
from seams import Outcome, Pending, Step


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing was started, and nothing can be before `until_s`, or before someone arrives."""

    until_s: float


@dataclass(frozen=True, slots=True)
class NeverStarted:
    """The model refused to start it; told in its turn, after the iteration before it."""

    error: Exception

    def result(self) -> Outcome:
        raise self.error


@dataclass(slots=True)
class Flight:
    """An iteration that was started and is not finished. `batch`: the requests of its rows."""

    start_s: float
    work: PlannedWork
    batch: Sequence[Inference]
    steps: Sequence[Step]
    pending: Pending
    discarded: bool = False  # the iteration before it failed

    @property
    def hopeless(self) -> bool:
        """Nothing will come of it."""
        return self.discarded or isinstance(self.pending, NeverStarted)

    def land(self) -> Outcome | Exception:
        """Waits for it."""
        try:
            return self.pending.result()
        except Exception as error:  # whatever the model raises harms this iteration alone
            return error
