"""The tokens and the predicted time that are left for prompts in an iteration."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from scheduling.prediction.predictor import StepTime
from scheduling.prediction.step_time import Work
from seams import Advance, Request, View

LEAST_PROMPT_TOKENS = 16  # of an iteration, however long they take
NO_WORK = Work()


class Room:
    """`tokens`: that prompts may have. `work`: what the iteration holds already. `most_s`: its
    longest duration."""

    def __init__(
        self,
        tokens: float = math.inf,
        predictor: StepTime | None = None,
        work: Work = NO_WORK,
        most_s: float = math.inf,
    ) -> None:
        self._tokens = tokens
        self._predictor = predictor
        self._work = work
        self._most_s = most_s
        self._taken = 0

    def chunks(self, view: View, prompts: Iterable[Request]) -> list[Advance]:
        """Of the first prompts, in this order, as far as there is room."""
        found = []
        for request in prompts:
            # of a waiting request, what it need not compute
            cached = 0 if request.resident else view.memory.hit_tokens(request)
            if not (tokens := self._take(request, cached)):
                break
            found.append(Advance(request, tokens))
        return found

    def _take(self, request: Request, cached: int) -> int:
        most = int(min(request.known - request.computed - cached, self._tokens))
        if most <= 0:
            return 0
        tokens = most
        if not self._fits(request, cached, most):
            sizes = range(1, most)
            fit = bisect_left(sizes, True, key=lambda n: not self._fits(request, cached, n))
            tokens = min(most, max(fit, LEAST_PROMPT_TOKENS - self._taken))
            self._tokens = tokens  # no other prompt joins
        self._tokens -= tokens
        self._taken += tokens
        self._add(Advance(request, tokens), cached)
        return tokens

    def admits(self, decode: Advance) -> bool:
        """Counts a decode if there is time for it."""
        if not self._fits(decode.request, 0, decode.num_tokens):
            return False
        self._add(decode, 0)
        return True

    def _add(self, step: Advance, cached: int) -> None:
        if self._predictor is not None:
            self._work = self._work.plus(step, cached)

    def _fits(self, request: Request, cached: int, tokens: int) -> bool:
        if self._predictor is None:
            return True
        more = self._work.plus(Advance(request, tokens), cached)
        return (self._predictor.seconds(more) or 0.0) <= self._most_s
