"""A step time that is known from the start."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.prediction.predictor import Load
from scheduling.prediction.step_time import Work
from tests.support.hash_model import virtual_duration_s

NO_LOAD = Load()


@dataclass(slots=True)
class Law:
    """A step-time that is known: the hash model's in virtual time."""

    ttft_s: float | None = None
    reach_tokens: int = 1 << 30
    margin: float = 0.0
    known: bool = True
    context_s: float = 0.0
    load: Load = NO_LOAD

    def seconds(self, work: Work) -> float | None:
        taken_s = virtual_duration_s(work.num_rows, work.num_tokens) + self.context_s * work.context
        return taken_s if self.known else None
