"""What `begin` returns to the engine's driver: an iteration in flight, or a time before which
nothing can start. No clock and no thread: the driver waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.inference import Inference
from engine.records import PlannedWork
from seams import Outcome, Pending, Served, Step


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing was started, and nothing can be until `until_s` or an arrival."""

    until_s: float


@dataclass(slots=True)
class Flight:
    """An iteration that was started and is not finished. `batch`: the requests of its rows."""

    start_s: float
    work: PlannedWork
    batch: Sequence[Inference]
    steps: Sequence[Step]
    pending: Pending | Exception  # why it could not start; raised after the previous iteration
    preempted: int  # number of requests, between the last recorded iteration and this plan
    discarded: bool = False  # the previous iteration failed

    @property
    def hopeless(self) -> bool:
        """It will have no result."""
        return self.discarded or isinstance(self.pending, Exception)

    def land(self) -> Outcome | Exception:
        """Waits for it."""
        if isinstance(self.pending, Exception):
            return self.pending
        try:
            return self.pending.result()
        except Exception as error:  # an error of the model ends only this iteration
            return error

    def leave(self) -> None:
        """Removes its requests from it."""
        for inference, step in zip(self.batch, self.steps, strict=True):
            inference.flights -= 1
            inference.expected -= step.draw


@dataclass(frozen=True, slots=True)
class ServedRows:
    """The rows for `Observer.observe`, after their requests received their tokens."""

    flight: Flight
    outcome: Outcome
    now_s: float

    def __iter__(self) -> Iterator[Served]:
        rows = zip(self.flight.batch, self.flight.steps, self.outcome.tokens, strict=True)
        for inference, step, tokens in rows:
            dropped = inference.last_token_s != self.now_s  # it had ended before
            yield Served(inference, step.tokens, 0 if dropped else len(tokens))
