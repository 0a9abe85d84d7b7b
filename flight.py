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


@dataclass(slots=True)
class Flight:
    """An iteration that was started and is not finished. `batch`: the requests of its rows."""

    start_s: float
    work: PlannedWork
    batch: Sequence[Inference]
    steps: Sequence[Step]
    pending: Pending | Exception  # why it could not start; told after the iteration before it
    discarded: bool = False  # the iteration before it failed

    @property
    def hopeless(self) -> bool:
        """Nothing will come of it."""
        return self.discarded or isinstance(self.pending, Exception)

    def land(self) -> Outcome | Exception:
        """Waits for it."""
        if isinstance(self.pending, Exception):
            return self.pending
        try:
            return self.pending.result()
        except Exception as error:  # whatever the model raises harms this iteration alone
            return error

    def leave(self) -> None:
        """Its requests are no longer in it."""
        for inference, step in zip(self.batch, self.steps, strict=True):
            inference.flights -= 1
            inference.expected -= step.draw
