"""A model that computes nothing, for what is measured around it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from runtime.executor import ModelInfo
from seams import Opening, Outcome, Step


class Paced(NamedTuple):
    """An iteration that ends at a time."""

    outcome: Outcome
    end_s: float

    def result(self) -> Outcome:
        time.sleep(max(0.0, self.end_s - time.perf_counter()))
        return self.outcome


class NoModel:
    """A token is a letter. Iterations follow one another as on a GPU, and each takes as long as a
    model would that yields ``rate`` tokens a second."""

    block_tokens, vocab_size, lost = 16, 1 << 17, None
    info = ModelInfo("nothing", 0, "none", "cuda", None, {}, batch_invariant=True)

    def __init__(self, context: int, num_tokens: int, rate: float = math.inf) -> None:
        self.context, self.num_blocks = context, num_tokens // self.block_tokens
        self._rate, self._end_s = rate, 0.0

    def warm_up(self) -> None:
        pass

    def open(self, new: Sequence[Opening]) -> None:
        pass

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Paced:
        seconds = len(steps) / self._rate
        self._end_s = max(self._end_s, time.perf_counter()) + seconds
        tokens = [[65 + step.start % 26] if step.draw else [] for step in steps]
        return Paced(Outcome(tokens, sum(s.num_tokens for s in steps), seconds), self._end_s)
