"""Decodes first; chunks of prompts fill the rest of a token budget.

Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI '24,
section 4.3 and algorithm 3. Every iteration advances every decode by its token. Then unfinished
prompts continue, then new ones begin in order of arrival, each with as many tokens as the budget
still allows. A long prompt takes several iterations and stalls no other request.

Bounds. Waiting: no request is overtaken, and a budget above the batch limit leaves tokens for
prompts in every iteration. Decoding: every iteration advances every decode, so between two of a
request's tokens lie fewer than `token_budget` tokens of prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scheduling.contract import PolicyOptionError
from scheduling.fitting import fitting
from seams import Advance, Plan, Request, View


class StallFree:
    """`token_budget`: tokens of an iteration. Decodes are never left out for it, so it must be
    above the batch limit if that is given; if not, prompts may wait until decodes have ended."""

    answers: Literal["own", "batch"] = "own"

    def __init__(self, token_budget: int = 512, max_batch_size: int = 0) -> None:
        """Raises PolicyOptionError."""
        if token_budget <= max_batch_size:
            raise PolicyOptionError(
                f"--token-budget is {token_budget}; allowed with --policy stall-free: more than "
                f"--max-batch-size ({max_batch_size}), or decodes leave no tokens for prompts"
            )
        self.token_budget = token_budget

    def plan(self, view: View) -> Plan:
        decoding = [request for request in view.resident if _left(request) == 1]
        begun = [request for request in view.resident if _left(request) > 1]
        advance = [Advance(request, 1) for request in decoding]
        budget = self.token_budget - len(decoding)
        for request in (*begun, *fitting(view, view.waiting)):
            if budget <= 0:
                break
            cached = 0 if request.resident else view.memory.hit_tokens(request)
            advance.append(Advance(request, min(_left(request) - cached, budget)))
            budget -= advance[-1].num_tokens
        return Plan(advance)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return [request for request in resident if request.done]


def _left(request: Request) -> int:
    """Tokens to compute before the next one can be drawn: 1 in decode."""
    return request.known - request.computed
