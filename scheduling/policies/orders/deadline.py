"""Deadline and remaining work, blended; requests that can no longer be in time come last.

Goel et al., "Niyama: Breaking the Silos of LLM Inference Serving" (arXiv 2503.22562), hybrid
prioritisation and eager relegation: the earliest deadline is best while all can be met, the
shortest work when the server is overloaded; their sum is the rank. The deadline is that of the
first token (`ttft_target_s`), or of the whole response (`deadline_s`); the work is its prefill, or
all of it. A request whose work no longer fits before its deadline waits for the others. The paper
reports 32 % more capacity than separate servers, and ten times fewer violations in overload.

O(n) of n waiting requests, since which of them can be in time changes with time. Without a queue it
does nothing. A request that can no longer be in time may wait for ever while others arrive.
"""

from __future__ import annotations

from scheduling.composed import Sorted
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work
from seams import Request, View

PROMPTS = 512  # tokens of an iteration, from which the time of a prompt token follows


class Deadline(Sorted):
    """`ttft_target_ms`: of requests that give no target and no deadline. `predictor`: without one,
    and until it has learnt, the earliest deadline is first."""

    def __init__(self, ttft_target_ms: float = 1000.0, predictor: Predictor | None = None) -> None:
        super().__init__()
        self.ttft_target_s = ttft_target_ms / 1000
        self.predictor = predictor
        self._token_s = self._step_s = 0.0

    def first(self, view: View, most: int) -> list[Request]:
        if self.predictor is not None and view.waiting:
            rows = max(1, len(view.resident))
            self._token_s = (self.predictor.seconds(Work(PROMPTS, 1, 1)) or 0.0) / PROMPTS
            self._step_s = self.predictor.seconds(Work(rows, rows, rows)) or 0.0
        return super().first(view, most)

    def rank_in(self, view: View, request: Request) -> tuple[bool, float]:
        work_s = self._token_s * (request.known - view.memory.hit_tokens(request))
        if request.ttft_target_s is None and request.deadline_s is not None:
            within_s = request.deadline_s
            work_s += self._step_s * (request.predicted_tokens - request.generated)
        elif request.generated:  # it was preempted after its first token
            return False, request.arrival_s
        else:
            within_s = request.ttft_target_s or self.ttft_target_s
        due_s = request.arrival_s + within_s
        return view.now_s + work_s > due_s, due_s + work_s
