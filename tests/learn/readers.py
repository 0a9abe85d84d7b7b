"""What readers write: an answer to each lesson that is right, and typical ones that are not yet,
each with what the course says of it."""

from __future__ import annotations

from typing import NamedTuple

RIGHT = {
    1: """
from seams import Advance, Plan

class OneAtATime:
    answers = "own"

    def plan(self, view):
        request = view.resident[0] if view.resident else view.waiting[0]
        return Plan([Advance(request, request.known - request.computed)])

    def retire(self, resident):
        return [request for request in resident if request.done]
""",
    2: """
from seams import Advance, Plan

class WholeBatch:
    answers = "batch"

    def plan(self, view):
        if view.resident:
            running = [r for r in view.resident if not r.done]
            done = [r for r in view.resident if r.done]
            return Plan([Advance(r, r.known - r.computed) for r in running], hold=done)
        batch = view.waiting[:view.max_batch_size]
        return Plan([Advance(r, r.known - r.computed) for r in batch])

    def retire(self, resident):
        return resident if all(r.done for r in resident) else []

def lay_out(steps):
    widest = max(step.num_tokens for step in steps)
    return [step._replace(padding=widest - step.num_tokens) for step in steps]
""",
    3: """
from seams import Advance, Plan

class EveryIteration:
    answers = "own"

    def plan(self, view):
        places = view.max_batch_size - len(view.resident)
        rows = [*view.resident, *view.waiting[:places]]
        return Plan([Advance(r, r.known - r.computed) for r in rows])

    def retire(self, resident):
        return [r for r in resident if r.done]
""",
    4: """
from learn.memory import PlainMemory

class KVBlocks(PlainMemory):
    def blocks_of(self, tokens):
        return (tokens + self.block_tokens - 1) // self.block_tokens

    def admission(self, request):
        return self.blocks_of(request.known + request.max_tokens - request.generated)

    def fit(self, requests, releasing=()):
        left, count = len(self.free), 0
        for request in requests:
            left -= self.admission(request)
            if left < 0:
                break
            count += 1
        return count

    def open(self, requests):
        for request in requests:
            self.table[request.id] = [self.free.pop() for _ in range(self.admission(request))]
        return [0] * len(requests)

    def release(self, request):
        self.free += self.table.pop(request.id)
""",
    5: """
from dataclasses import replace

from scheduling.fitting import divided, fitting
from seams import Advance, Plan

class Chunks:
    answers = "own"

    def __init__(self, token_budget):
        self.token_budget = token_budget

    def plan(self, view):
        advance, begun = divided(view)
        left = self.token_budget - sum(step.num_tokens for step in advance)
        for request in [*begun, *fitting(view, view.waiting)]:
            tokens = min(left, request.known - request.computed)
            if tokens <= 0:
                break
            advance.append(Advance(request, tokens))
            left -= tokens
        return Plan(advance)

    def retire(self, resident):
        return [request for request in resident if request.done]

class MyPolicy(Chunks):
    def plan(self, view):
        queue = sorted(view.waiting, key=lambda request: request.max_tokens)
        return super().plan(replace(view, waiting=queue))
""",
}


class Mistake(NamedTuple):
    """`right` of a lesson's answer was written as `wrong`; the course says `said`."""

    lesson: int
    right: str
    wrong: str
    said: str


MISTAKES = [
    Mistake(1, "request.known - request.computed", "1", "advances by 1 of the 3 tokens"),
    Mistake(
        1,
        "return Plan([Advance(request, request.known - request.computed)])",
        "rows = [*view.resident, *view.waiting]\n"
        "        return Plan([Advance(r, r.known - r.computed) for r in rows])",
        "iteration 1 advances the requests [0, 1, 2]",
    ),
    Mistake(1, "else view.waiting[0]", "else view.waiting[-1]", "in the order [2"),
    Mistake(1, "if request.done", "if request.generated > 1", "retires 0, which is not done"),
    Mistake(1, "return Plan(", "Plan(", "`plan` returned nothing"),
    Mistake(1, "Plan([Advance(request, request.known - request.computed)])", "Plan([request])",
            "Plan([Advance(request, tokens), ...])"),
    Mistake(1, "view.resident[0]", "view.residents[0]", "AttributeError"),
    Mistake(1, "class OneAtATime", "class One", "does not define OneAtATime"),
    Mistake(1, "    def retire", "   def retire", "lesson1.py, line"),
    Mistake(2, "padding=widest - step.num_tokens", "padding=widest", "[5, 5, 5, 5]"),
    Mistake(2, ", hold=done", "", "have no row in iteration 4"),
    Mistake(2, "resident if all(r.done for r in resident) else []",
            "[r for r in resident if r.done]", "have no row in iteration 4"),
    Mistake(2, "        batch = view.waiting[:view.max_batch_size]",
            "        batch = view.waiting", "the policy plans 5 rows; the batch limit is 4"),
    Mistake(2, "running = [r for r in view.resident if not r.done]",
            "running = [*[r for r in view.resident if not r.done], *view.waiting]",
            "the batch limit is 4"),
    Mistake(2, "hold=done)",
            "hold=done) if len(view.resident) == view.max_batch_size or not view.waiting else "
            "Plan([Advance(r, r.known - r.computed) for r in [*running, "
            "*view.waiting[:view.max_batch_size - len(view.resident)]]], hold=done)",
            "the requests [2] join in iteration"),
    Mistake(2, "    return [step._replace(", "    [step._replace(", "`lay_out` returned nothing"),
    Mistake(2, "hold=done", "hold=[Advance(r, 0) for r in done]",
            "`hold` takes requests, not steps"),
    Mistake(3, "places = view.max_batch_size - len(view.resident)",
            "places = view.max_batch_size", "the batch limit is 4"),
    Mistake(3, "view.waiting[:places]]", "(() if view.resident else view.waiting[:places])]",
            "though four are allowed"),
    Mistake(3, "view.waiting[:places]]", "view.waiting[:min(1, places)]]",
            "four are allowed and 8 requests wait"),
    Mistake(3, "*view.waiting[:places]", "*reversed(view.waiting[-places:] if places else [])",
            "not as they arrived"),
    Mistake(3, "[r for r in resident if r.done]", "[]", "so retire has to return it"),
    Mistake(4, "(tokens + self.block_tokens - 1)", "tokens", "blocks_of(1) is 0, and should be 1"),
    Mistake(4, "request.known + request.max_tokens - request.generated", "request.known",
            "is 1, and should be 4"),
    Mistake(4, "request.max_tokens - request.generated", "request.max_tokens",
            "is 5, and should be 4"),
    Mistake(4, "- request.generated", "- request.generated - 1", "is 3, and should be 4"),
    Mistake(4, "return count", "return requests[:count]", "is a list, and should be 2"),
    Mistake(4, "self.table.pop(request.id)", "self.table[request.id]",
            "the number of requests in the table is 2, and should be 0"),
    Mistake(4, "left -= self.admission(request)\n            if left < 0:",
            "if self.admission(request) > left:", "is 4, and should be 2"),
    Mistake(4, "self.free += self.table.pop(request.id)", "del self.table[request.id]",
            "after their release"),
    Mistake(4, "self.free.pop()", "self.free[-1]", "number of used blocks is 0, and should be 5"),
    Mistake(4, "break", "left += self.admission(request)\n                continue",
            "is 3, and should be 2"),
    Mistake(5, "min(left, request.known", "max(0, request.known", "the budget is 8"),
    Mistake(5, "            left -= tokens\n", "", "the budget is 8"),
    Mistake(5, "            left -= tokens\n", "            break\n", "unused"),
    Mistake(5, "[*begun, *fitting(view, view.waiting)]", "fitting(view, view.waiting)",
            "the policy planned nothing, and requests wait"),
    Mistake(5, "[*begun, *fitting(view, view.waiting)]", "[*fitting(view, view.waiting), *begun]",
            "finish one before the next begins"),
    Mistake(5, "tokens = min(left, ", "tokens = min(left, 3, ", "unused"),
    Mistake(5, "key=lambda request: request.max_tokens", "key=lambda request: request.id",
            "1.00 times that of first come"),
    Mistake(5, "key=lambda request: request.max_tokens", "key=lambda request: -request.max_tokens",
            "times that of first come"),
]  # fmt: skip
