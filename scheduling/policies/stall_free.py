"""Decodes first; chunks of prompts fill the rest of a token budget.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI '24,
section 4.3 and algorithm 3. Every iteration advances every decode by its token. Then unfinished
prompts continue, then new ones begin in order of arrival, each with as many tokens as the budget
still allows. A long prompt takes several iterations and stalls no other request.

The paper sets the budget once, from an objective and a profile. Here it is `auto`: as many tokens
as the iteration may hold to take `MOST_STALL` times as long as its decodes alone, by the learnt
step time. Its attention counts, so chunks shrink as a prompt's past grows. Sizes that were never
seen are not trusted: the budget grows with `StepTime.reach_tokens`. While there is nothing to go
by, it is the batch limit + `PROMPT_TOKENS`.

Bounds. Waiting: no request is overtaken, and every iteration has tokens for prompts: a budget above
the batch limit leaves some, and `auto` at least `LEAST_PROMPT_TOKENS` of `Room`. Decoding: every
iteration advances every decode, so between two of a request's tokens lie fewer than `token_budget`
tokens of prefill, or one iteration of the predicted duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scheduling.contract import PolicyOptionError
from scheduling.fitting import divided, fitting
from scheduling.prediction.predictor import StepTime
from scheduling.prediction.room import Room
from scheduling.prediction.step_time import Work
from seams import Advance, Plan, Request, View

MOST_STALL = 2.25  # times the decodes alone; noise then leaves p99 ITL below 3 times as long
PROMPT_TOKENS = 256  # of an iteration, until there are predictions, or if no request decodes
LEAST_GAIN = 0.02  # of the time per token, for which a chunk is doubled if no request decodes


class StallFree:
    """`token_budget`: tokens of an iteration. Decodes are never left out for it, so it must be
    above the batch limit if that is given; if not, prompts may wait until decodes have ended.
    `predictor`: the step time for `auto`; without one, nothing is ever learnt."""

    answers: Literal["own", "batch"] = "own"

    def __init__(
        self,
        token_budget: int | Literal["auto"] = "auto",
        max_batch_size: int = 0,
        predictor: StepTime | None = None,
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
            advance += self._room(view, advance).chunks(view, prompts)
        return Plan(advance)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return [request for request in resident if request.done]

    def _room(self, view: View, decoding: Sequence[Advance]) -> Room:
        """What the decodes leave to prompts."""
        rows, predictor = len(decoding), self.predictor
        n = sum([step.num_tokens for step in decoding])
        if self.token_budget != "auto":
            return Room(self.token_budget - n)
        unlearnt = view.max_batch_size + PROMPT_TOKENS
        if predictor is None:
            return Room(unlearnt - n)
        if not decoding:
            return Room(_efficient_tokens(predictor, unlearnt))
        context = sum([step.request.computed for step in decoding]) + n
        decodes = Work(n, rows, rows, context, context)
        if (alone_s := predictor.seconds(decodes)) is None:
            return Room(unlearnt - n)
        most_tokens = max(predictor.reach_tokens, unlearnt)  # reach: now that it has learnt
        return Room(most_tokens - n, predictor, decodes, MOST_STALL * alone_s)


def _efficient_tokens(predictor: StepTime, least: int) -> int:
    """Tokens of an iteration of prompts alone: doubled while that saves time per token."""

    def token_s(tokens: int) -> float:
        return (predictor.seconds(Work(tokens, 1, 1)) or 0.0) / tokens

    tokens, now_s = least, token_s(least)
    while 2 * tokens <= predictor.reach_tokens and now_s > 0:
        if (next_s := token_s(2 * tokens)) > (1 - LEAST_GAIN) * now_s:
            break
        tokens, now_s = 2 * tokens, next_s
    return tokens
