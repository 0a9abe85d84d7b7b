"""How many drafts each row of an iteration gets.

A draft is a token that the model guesses behind a row's newest one and computes in the same
iteration, as a row of its own. Rows are almost free while an iteration waits for its weights, and
cost their full share once it computes all the time, so the number is planned for each iteration:
as many drafts as make the expected tokens per second largest, by the step time that the server has
learnt and by the share of drafts that were accepted lately (Liu et al., "Optimizing Speculative
Decoding for Serving Large Language Models Using Goodput", arXiv 2406.14066). With a share a of
accepted drafts, k of them yield 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens.

A plan never passes a request's `max_tokens` or the blocks that it holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import cast

from engine.blocks import Ledger
from engine.inference import Inference
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.step_time import Work
from seams import Advance, Drafts

FREE_ROWS = 9  # of an iteration, drafts included, while nothing is learnt
MOST_PLANNED = 64  # drafts of an iteration
LEAST_GAIN = 1.02  # x the tokens per second without drafts; less may be an error of the prediction
AT_FIRST = 0.7  # share of accepted drafts, before any was computed
WEIGHT = 2.0  # of that share, and of the other requests' share for a new request, in drafts
KEPT = 0.9  # of what a request's drafts say, after each iteration with more of them
KEPT_OF_ALL = 0.98  # the same of all requests' drafts
KEPT_WITHOUT = 0.99  # of both, after each iteration without: what was rejected is tried again


class Speculation:
    """Plans drafts, and learns how many are accepted."""

    def __init__(self, most: int, predictor: Predictor) -> None:
        """`most`: drafts of a row."""
        self.most = most
        self._predictor = predictor
        self._hits = self._trials = 0.0  # of all requests: accepted drafts, and those compared

    def plan(
        self,
        rows: Sequence[tuple[Inference, int]],
        most_drafts: int,
        memory: Ledger,
    ) -> dict[int, int]:
        """Drafts by request. `rows`: with the tokens that each computes. `most_drafts`: of all rows
        together."""
        if most_drafts <= 0:
            return {}
        may = [(row, most) for row, n in rows if n == 1 and (most := self._most(row, memory)) > 0]
        if not may:
            return {}
        work = Work.of(cast(Sequence[Advance], rows))
        drafts = self._best([(most, self._share(row), row) for row, most in may], work, most_drafts)
        for row, _ in may:
            if row.id not in drafts:
                row.draft_hits *= KEPT_WITHOUT
                row.draft_trials *= KEPT_WITHOUT
        if not drafts:
            self._hits *= KEPT_WITHOUT
            self._trials *= KEPT_WITHOUT
        return drafts

    def learn(self, row: Inference, drafts: Drafts) -> None:
        """A draft behind a rejected one was compared with nothing."""
        trials = min(drafts.accepted + 1, drafts.computed)
        row.draft_hits = KEPT * row.draft_hits + drafts.accepted
        row.draft_trials = KEPT * row.draft_trials + trials
        self._hits = KEPT_OF_ALL * self._hits + drafts.accepted
        self._trials = KEPT_OF_ALL * self._trials + trials

    def _most(self, row: Inference, memory: Ledger) -> int:
        """Only a row that decodes has drafts."""
        if row.computed < row.prompt_tokens or row.computed + 1 != row.known:
            return 0
        held = memory.held_tokens(row) - row.known
        return min(self.most, row.max_tokens - row.generated - 1, held)

    def _share(self, row: Inference) -> float:
        """Of its drafts, those that are likely to be accepted."""
        of_all = (self._hits + WEIGHT * AT_FIRST) / (self._trials + WEIGHT)
        return (row.draft_hits + WEIGHT * of_all) / (row.draft_trials + WEIGHT)

    def _best(
        self, may: Sequence[tuple[int, float, Inference]], work: Work, most_drafts: int
    ) -> dict[int, int]:
        """One draft after the other, the likeliest first, and of these numbers the best. `may`: the
        most drafts of each row, and the share of them that is likely to be accepted. `work`: of the
        iteration without drafts."""
        seconds = self._predictor.seconds
        tokens = work.num_drawn  # that are expected
        alone_s = seconds(work)
        if alone_s is None:
            most_drafts = min(most_drafts, FREE_ROWS - int(work.num_tokens))
        next_ones = [(-share, i) for i, (_, share, _) in enumerate(may)]  # likelihoods
        heapq.heapify(next_ones)
        counts = [0] * len(may)
        best, best_counts = 0.0, [0] * len(may)
        if alone_s is not None:
            best = LEAST_GAIN * tokens / max(alone_s, 1e-9)
        for _ in range(min(most_drafts, MOST_PLANNED)):
            if not next_ones:
                break
            likelihood, i = next_ones[0]
            most, share, row = may[i]
            tokens -= likelihood
            counts[i] += 1
            if counts[i] < most:
                heapq.heapreplace(next_ones, (likelihood * share, i))
            else:
                heapq.heappop(next_ones)
            if alone_s is None:
                best_counts = counts
                continue
            keys = row.known + counts[i]
            work = work.beside(Work(1, 1, 1, keys, keys))
            rate = tokens / max(seconds(work) or 0.0, 1e-9)
            if rate > best:
                best, best_counts = rate, list(counts)
        return {row.id: n for (_, _, row), n in zip(may, best_counts, strict=True) if n}
