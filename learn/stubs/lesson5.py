"""Lesson 5: chunks of long prompts, and a policy of your own. The page is learn/5-chunks.md."""

from dataclasses import replace

from scheduling.fitting import divided, fitting
from seams import Advance, Plan


class Chunks:
    answers = "own"  # leave this line, the engine reads it

    def __init__(self, token_budget):
        # the most tokens of an iteration; "auto" is what a server says if it is not told
        self.token_budget = 64 if token_budget == "auto" else token_budget

    def plan(self, view):
        # `advance`: a step for each decode. `begun`: residents with a part of their prompt left.
        advance, begun = divided(view)
        # Yours: give what is left of the budget to the prompts, first to those that have begun,
        # then to the newcomers that fit: fitting(view, view.waiting)
        raise NotImplementedError("`plan` adds chunks of prompts to the decodes")
        return Plan(advance)

    def retire(self, resident):
        return [request for request in resident if request.done]


class MyPolicy(Chunks):
    def plan(self, view):
        # Yours: show `Chunks` the waiting requests in another order:
        #       super().plan(replace(view, waiting=sorted(view.waiting, key=...)))
        raise NotImplementedError("`plan` chooses who begins first")
