"""Whether the loop still advances, judged from outside it: a model or a policy that hangs holds the
loop's thread, which alone ends requests. Reads no clock; the thread that looks is in `thread.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from batching import BatchingManager
from scheduling.prediction.step_time import Work

PAUSE_S = 60.0  # without a look: the process was stopped


@dataclass(frozen=True, slots=True)
class Limit:
    """How long an iteration may take."""

    factor: float = 10.0  # times its predicted duration,
    least_s: float = 600.0  # but at least so long

    def seconds(self, predicted_s: float | None) -> float:
        return max(self.least_s, self.factor * (predicted_s or 0.0))


class Liveness:
    """`predict`: the duration of an iteration with this work; None if nothing is learnt yet."""

    def __init__(
        self, manager: BatchingManager, predict: Callable[[Work], float | None], limit: Limit
    ) -> None:
        self.manager = manager
        self.predict = predict
        self.limit = limit
        self._looked_s = math.inf
        self._counts_from_s = -math.inf

    def look(self, now_s: float) -> str | None:
        """Answers requests that are past their limit. Returns why the process must end; None while
        it need not."""
        manager = self.manager
        paused = now_s - self._looked_s > PAUSE_S
        self._looked_s = now_s
        manager.give_up_overdue(now_s)
        began_s = manager.step_since_s
        if manager.model is None or began_s is None:
            return None
        # a model may be lost for any time; and who looks was stopped, with the whole process
        if manager.model.lost is not None or paused:
            self._counts_from_s = now_s
        lasted_s = now_s - max(began_s, self._counts_from_s)
        if lasted_s <= self.limit.least_s:
            return None
        # none in flight: the policy hangs, or the model before it started
        iteration = next(iter(manager.in_flight.copy()), None)
        predicted_s = None if iteration is None else self.predict(iteration.work())
        if lasted_s <= self.limit.seconds(predicted_s):
            return None
        return (
            f"an iteration has not ended after {lasted_s:.0f} s; allowed: {self.limit.factor:g} "
            f"times its predicted duration, and at least {self.limit.least_s:g} s"
        )
