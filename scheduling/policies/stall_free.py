"""Decodes first; chunks of prompts fill the rest of a token budget.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI '24,
section 4.3 and algorithm 3. Every iteration advances every decode by its token. Then unfinished
prompts continue, then new ones begin in order of arrival, each with as many tokens as the budget
still allows. A long prompt takes several iterations and stalls no other request.

The paper sets the budget once, from an objective and a profile. Here it is `auto`: as many tokens
as the iteration may hold to take `MOST_STALL` times as long as its decodes alone, by the learnt
step time. Its attention counts, so chunks shrink as a prompt's past grows. Sizes that were never
seen are not trusted: the budget grows with `Predictor.reach_tokens`. While there is nothing to go
by, it is the batch limit + `PROMPT_TOKENS`.

Bounds. Waiting: no request is overtaken, and every iteration has tokens for prompts: a budget above
the batch limit leaves some, and `auto` at least `LEAST_PROMPT_TOKENS`. Decoding: every iteration
advances every decode, so between two of a request's tokens lie fewer than `token_budget` tokens of
prefill, or one iteration of the predicted duration.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal

from scheduling.contract import PolicyOptionError
from scheduling.fitting import divided, fitting
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work
from seams import Advance, Plan, Policy, Request, View

MOST_STALL = 2.25  # times the decodes alone; noise then leaves p99 ITL below 3 times as long
PROMPT_TOKENS = 256  # of an iteration, until there are predictions, or if no request decodes
LEAST_PROMPT_TOKENS = 16  # of an iteration, however long they take
LEAST_GAIN = 0.02  # of the time per token, for which a chunk is doubled if no request decodes
NO_WORK = Work()


class StallFree(Policy):
    """`token_budget`: tokens of an iteration. Decodes are never left out for it, so it must be
    above the batch limit if that is given; if not, prompts may wait until decodes have ended.
    `predictor`: the step time for `auto`; without one, nothing is ever learnt."""

    def __init__(
        self,
        token_budget: int | Literal["auto"] = "auto",
        max_batch_size: int = 0,
        predictor: Predictor | None = None,
    ) -> None:
        """Raises PolicyOptionError."""
        if token_budget != "auto" and token_budget <= max_batch_size:
            raise PolicyOptionError(
                f"--token-budget is {token_budget}; allowed: auto, or more than --max-batch-size "
                f"({max_batch_size}), or decodes leave no tokens for prompts"
            )
        self.token_budget = token_budget
        self.predictor = predictor

    def plan(self, view: View) -> Plan:
        advance, begun = divided(view)
        if prompts := (*begun, *fitting(view, view.waiting)):
            advance += self._budget(view, advance).chunks(view, prompts)
        return Plan(advance)

    def _budget(self, view: View, decoding: Sequence[Advance]) -> ChunkBudget:
        """What the decodes leave to prompts."""
        rows, predictor = len(decoding), self.predictor
        n = sum([step.num_tokens for step in decoding])
        if self.token_budget != "auto":
            return ChunkBudget(self.token_budget - n)
        unlearnt = view.max_batch_size + PROMPT_TOKENS
        if predictor is None:
            return ChunkBudget(unlearnt - n)
        if not decoding:
            return ChunkBudget(_efficient_tokens(predictor, unlearnt))
        context = sum([step.request.computed for step in decoding]) + n
        decodes = Work(n, rows, rows, context, context)
        if (alone_s := predictor.seconds(decodes)) is None:
            return ChunkBudget(unlearnt - n)
        most_tokens = max(predictor.reach_tokens, unlearnt)  # reach: now that it has learnt
        return ChunkBudget(most_tokens - n, predictor, decodes, MOST_STALL * alone_s)


def _efficient_tokens(predictor: Predictor, least: int) -> int:
    """Tokens of an iteration of prompts alone: doubled while that saves time per token."""

    def token_s(tokens: int) -> float:
        return (predictor.seconds(Work(tokens, 1, 1)) or 0.0) / tokens

    tokens, now_s = least, token_s(least)
    while 2 * tokens <= predictor.reach_tokens and now_s > 0:
        if (next_s := token_s(2 * tokens)) > (1 - LEAST_GAIN) * now_s:
            break
        tokens, now_s = 2 * tokens, next_s
    return tokens


class ChunkBudget:
    """The tokens and the predicted time that an iteration has for prompts. `tokens`: that they may
    have. `work`: what the iteration holds already. `most_s`: its longest duration."""

    def __init__(
        self,
        tokens: float = math.inf,
        predictor: Predictor | None = None,
        work: Work = NO_WORK,
        most_s: float = math.inf,
    ) -> None:
        self._tokens = tokens
        self._predictor = predictor
        self._work = work
        self._most_s = most_s
        self._taken = 0

    def chunks(self, view: View, prompts: Iterable[Request]) -> list[Advance]:
        """Of the first prompts, in this order, as far as the budget reaches."""
        chunks = []
        for request in prompts:
            # of a waiting request, what it need not compute
            cached = 0 if request.resident else view.memory.hit_tokens(request)
            if not (tokens := self._take(request, cached)):
                break
            chunks.append(Advance(request, tokens))
        return chunks

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
