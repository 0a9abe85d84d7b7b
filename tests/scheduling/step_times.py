"""A step time that is known from the start."""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.prediction.predictor import Load, Predictor
from scheduling.prediction.step_time import Work

NO_LOAD = Load()


@dataclass
class FixedStepTime(Predictor):
    """The hash model's in virtual time, unless its parts say otherwise."""

    ttft_s: float | None = None
    reach_tokens: int = 1 << 30
    margin: float = 0.0
    known: bool = True
    constant_s: float = 2**-10
    row_s: float = 2**-13
    token_s: float = 2**-17
    pair_s: float = 0.0  # of a query and a key
    context_s: float = 0.0
    load: Load = NO_LOAD

    def seconds(self, work: Work) -> float | None:
        taken_s = self.constant_s + self.row_s * work.num_rows + self.token_s * work.num_tokens
        taken_s += self.pair_s * work.attended + self.context_s * work.context
        return taken_s if self.known else None
