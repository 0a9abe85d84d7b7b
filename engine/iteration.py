"""What `begin` returns: an iteration in flight, or what the loop has to wait for. No clock and no
thread: the loop waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.inference import NO_DRAFTS, Inference
from records import IterationRecord
from seams import Outcome, Pending, Served, Step


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can start before `until_s`, unless the queue or the model changes first. Used
    directly for a time that the policy has set."""

    until_s: float = math.inf


class ArrivalWait(Wait):
    """There are no requests."""

    __slots__ = ()


class IterationWait(Wait):
    """The next plan needs what an iteration in flight will change."""

    __slots__ = ()


class ModelWait(Wait):
    """The model is lost and may return. At `until_s` a request reaches its time limit."""

    __slots__ = ()


@dataclass(slots=True)
class Iteration:
    """An iteration that was started and has not ended. `batch`: the requests of its rows."""

    start_s: float
    record: IterationRecord
    batch: Sequence[Inference]
    steps: Sequence[Step]
    pending: Pending | Exception  # the error if it could not start; it counts in its turn
    discarded: bool = False  # an earlier iteration failed, and this one built on it

    @property
    def failed(self) -> bool:
        """Whether it is known already that no request receives anything from it."""
        return self.discarded or isinstance(self.pending, Exception)

    def outcome(self) -> Outcome | Exception:
        """Waits for the model. An error of the model ends only this iteration."""
        if isinstance(self.pending, Exception):
            return self.pending
        try:
            return self.pending.result()
        except Exception as error:
            return error

    def leave(self) -> None:
        """Its requests are no longer part of it: the inverse of `enter`, except that what was
        computed stays."""
        for inference, step in zip(self.batch, self.steps, strict=True):
            inference.num_in_flight -= 1
            inference.expected -= step.draw
            if step.drafts:
                inference.guessing = False

    def wanted(self, outcome: Outcome) -> Outcome:
        """The outcome without tokens of rows that failed or have ended, and without those behind
        one that ends their request."""
        if max(map(len, outcome.tokens)) < 2 and not outcome.failed:
            return outcome
        rows = zip(self.batch, outcome.tokens, strict=True)
        tokens = [
            () if i in outcome.failed or inference.end is not None else inference.wanted(tokens)
            for i, (inference, tokens) in enumerate(rows)
        ]
        scores = {i: row[: len(tokens[i])] for i, row in outcome.logprobs.items()}
        drafts = {
            i: of._replace(accepted=max(0, min(of.accepted, len(tokens[i]) - 1)))
            for i, of in outcome.drafts.items()
        }
        return replace(outcome, tokens=tokens, logprobs=scores, drafts=drafts)

    def add_logprobs(self, outcome: Outcome) -> None:
        """Gives the requests the logprobs that they asked for."""
        for i, (first, scores) in outcome.prompt_logprobs.items():
            # after a preemption some tokens are computed again and already known
            known = self.batch[i].prompt_logprobs
            known += scores[len(known) + 1 - first :]
        for i, scores in outcome.logprobs.items():
            if self.batch[i].end is None:
                self.batch[i].logprobs += scores


def enter(
    advance: Sequence[tuple[Inference, int]],
    hold: Sequence[Inference],
    new_blocks: Mapping[int, Sequence[int]],
    drafts: Mapping[int, int],
) -> tuple[list[Inference], list[Step]]:
    """Makes requests part of an iteration that is about to start: the batch, and its steps. Their
    tokens count as computed from now on, their drafts do not. `new_blocks`: of each sequence, since
    its last step. `drafts`: the most of each sequence."""
    batch: list[Inference] = []
    steps: list[Step] = []
    for inference, num_tokens in (*advance, *((inference, 0) for inference in hold)):
        start = inference.computed
        computed, known = start + num_tokens, len(inference.ids) + inference.expected
        draw = computed == known and inference.end is None
        blocks = new_blocks.get(inference.id, ()) if new_blocks else ()
        most = drafts.get(inference.id, 0) if drafts else 0
        # takes a third of the time of Step(...): 0.4 us less for each row
        steps.append(tuple.__new__(Step, (inference.id, start, num_tokens, draw, blocks, 0, most)))
        batch.append(inference)
        if most:
            inference.guessing = True
        inference.computed = computed
        inference.expected += draw
        inference.num_in_flight += 1
    return batch, steps


@dataclass(frozen=True, slots=True)
class ServedRows:
    """The rows for `Observer.observe`, after their requests received their tokens."""

    iteration: Iteration
    outcome: Outcome
    now_s: float

    def __iter__(self) -> Iterator[Served]:
        iteration = self.iteration
        rows = zip(iteration.batch, iteration.steps, self.outcome.tokens, strict=True)
        for i, (inference, step, tokens) in enumerate(rows):
            dropped = inference.last_token_s != self.now_s  # it had ended before
            accepted = self.outcome.drafts.get(i, NO_DRAFTS).accepted
            yield Served(inference, step.num_tokens + accepted, 0 if dropped else len(tokens))
