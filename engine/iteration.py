"""What `begin` returns: an iteration in flight, or what the loop has to wait for. No clock and no
thread: the loop waits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import attrgetter

from engine.inference import NO_DRAFTS, Inference
from scheduling.prediction.step_time import Work
from seams import (
    CHUNK,
    DECODE,
    HELD,
    PAUSED,
    PREFILL,
    Columns,
    Drafts,
    IterationRecord,
    Outcome,
    Pending,
    Rows,
    Served,
    Step,
    counted,
)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can start before `until_s`, unless the queue, the model or an iteration in flight
    changes something first."""

    until_s: float = math.inf


@dataclass(slots=True)
class Iteration:
    """An iteration that was started and has not ended. `batch`: the requests of its rows."""

    start_s: float
    record: IterationRecord  # until it has ended, only the state at its start
    batch: Sequence[Inference]
    steps: Sequence[Step]
    new: Container[int]  # requests that were admitted for it
    paused: Sequence[tuple[int, int]]  # other residents, each with its slot
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

    def undo(self) -> None:
        """Its requests receive nothing from it: the inverse of `enter`, except that what was
        computed stays."""
        for inference, step in zip(self.batch, self.steps, strict=True):
            if step.draw:
                inference.known -= 1
                inference.must_wait, inference.done = False, inference.end is not None

    def kinds(self) -> bytes:
        """Of its rows, before they receive tokens: indices of KINDS."""
        rows = zip(self.batch, self.steps, strict=True)
        return bytes(
            [
                HELD
                if not n
                else DECODE
                if n <= i.num_newest and start >= i.prompt_tokens
                else PREFILL
                if draw and id in self.new
                else CHUNK
                for i, (id, start, n, draw, _, _, _) in rows
            ]
        )

    def work(self) -> Work:
        """As planned, without drafts."""
        of, beside = Columns(*zip(*self.steps, strict=True)), self.record.with_deferred
        num_tokens, attended, context = counted(of.starts, of.counts)
        return Work(num_tokens, len(of.ids), sum(of.draws), attended, context, beside)

    def complete(self, outcome: Outcome, start_s: float, end_s: float) -> IterationRecord:
        """Its record, before its requests receive their tokens. It works column by column, which
        takes a third of the time of a loop over the rows."""
        record, batch, of = self.record, self.batch, Columns(*zip(*self.steps, strict=True))
        record.num_tokens, record.attended, record.context = counted(of.starts, of.counts)
        ids, counts, kinds = of.ids, of.counts, self.kinds()
        slots = tuple([inference.slot for inference in batch])
        if self.paused:
            others, of_others = zip(*self.paused, strict=True)
            ids, slots = (*ids, *others), (*slots, *of_others)
            counts = (*counts, *[0] * len(others))
            kinds += bytes([PAUSED]) * len(others)
        record.rows = Rows(ids, slots, counts, kinds)
        if outcome.drafts:
            self._add_drafts(outcome.drafts)
        given = compress(batch, outcome.tokens)
        # most rows had their last token in the same iteration: few different gaps to keep
        since = Counter(map(attrgetter("service_class", "last_token_s"), given))
        gaps = [(who, end_s - at_s, n) for (who, at_s), n in since.items() if at_s is not None]
        record.gaps = tuple(gaps)
        record.start_s, record.duration_s = start_s, end_s - start_s
        record.num_positions = outcome.positions
        record.padding = outcome.positions - record.num_tokens - record.rejected_drafts
        record.num_drawn, record.num_generated = since.total(), sum(map(len, outcome.tokens))
        if record.with_deferred:
            deferred = [inference.service_class == "deferred" for inference in batch]
            record.deferred_tokens = sum(compress(counts, deferred))
            record.deferred_generated = sum(map(len, compress(outcome.tokens, deferred)))
        return record

    def _add_drafts(self, drafts: Mapping[int, Drafts]) -> None:
        """Each draft was a row that read the keys of all tokens before it. Accepted ones are tokens
        of their request's row."""
        record = self.record
        counts = list(record.rows.token_counts)
        accepted, rejected = [0] * len(counts), [0] * len(counts)
        for i, (computed, correct) in drafts.items():
            keys = self.steps[i].start + self.steps[i].num_tokens
            keys = computed * keys + computed * (computed + 1) // 2
            record.attended += keys
            record.context += keys
            counts[i] += correct
            accepted[i], rejected[i] = correct, computed - correct
        record.accepted_drafts, record.rejected_drafts = sum(accepted), sum(rejected)
        record.num_tokens += record.accepted_drafts
        record.rows = replace(
            record.rows,
            token_counts=tuple(counts),
            accepted=tuple(accepted),
            rejected=tuple(rejected),
        )

    def until_ends(self, outcome: Outcome) -> Outcome:
        """The outcome without tokens of rows that failed or have ended, and without those behind
        one that ends their request."""
        ended = [inference for inference in self.batch if inference.end is not None]
        if not (ended or outcome.failed) and max(map(len, outcome.tokens)) < 2:
            return outcome
        rows = zip(self.batch, outcome.tokens, strict=True)
        tokens = [
            () if i in outcome.failed or inference.end is not None else inference.until_end(tokens)
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
    number: int,
    new_blocks: Mapping[int, Sequence[int]],
    drafts: Mapping[int, int],
) -> tuple[list[Inference], list[Step]]:
    """Makes requests part of an iteration that is about to start: the batch, and its steps. Their
    tokens count as computed from now on, their drafts do not. `number`: of the iteration.
    `new_blocks`: of each sequence, since its last step. `drafts`: the most of each sequence."""
    batch: list[Inference] = []
    steps: list[Step] = []
    for inference, num_tokens in (*advance, *((inference, 0) for inference in hold)):
        start = inference.computed
        inference.computed = computed = start + num_tokens
        inference.newest_iteration, known = number, inference.known
        draw = computed == known and inference.end is None
        blocks = new_blocks.get(inference.id, ()) if new_blocks else ()
        most = drafts.get(inference.id, 0) if drafts else 0
        # takes a third of the time of Step(...): 0.4 us less for each row
        steps.append(tuple.__new__(Step, (inference.id, start, num_tokens, draw, blocks, 0, most)))
        batch.append(inference)
        if draw:
            inference.known = known = known + 1
            inference.done = known == inference.prompt_tokens + inference.max_tokens
            inference.must_wait = most > 0 or inference.sampling.constraint is not None
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
