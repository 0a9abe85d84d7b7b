"""What is learnt online: the step time, from the newest iterations of each size, and how many
tokens a request will generate.

The step time is measured from the start of an iteration to the start of the next, if that follows
at once: for a request that waits for a token, planning and delivery count like computing. Each size
is kept, since a policy that fills every iteration to a budget would soon see no other, but must
know the duration of smaller ones.

Similar to HyGen (arXiv 2501.14808, section 4.2) and the open engine Tidal, but without profiling
beforehand. Deterministic in its records; it reads no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict, deque
from typing import NamedTuple

import numpy as np

from scheduling.prediction.step_time import FEATURES, KNOTS, Curve, Work, fit
from seams import IterationRecord, RequestRecord

KEPT = 64  # iterations of each segment of KNOTS, with deferred requests and without
SIZES = 2 * len(KNOTS)
REFIT_EVERY = 64  # iterations, at least
REFIT_EVERY_S = 0.5  # at least, since a fit takes 1 to 2 ms
LEAST_R2 = 0.8
# The most that planning for deferred requests takes in an iteration, whatever the model. A longer
# time is due to a machine that slowed down since the last iterations without deferred requests.
MOST_PLANNING_S = 0.00025
TRUSTED_BEYOND = 2  # times the tokens of the largest iteration that was seen
LOAD_DECAY = 0.995  # per iteration: what immediate requests left stays free for the next ones
TTFTS_KEPT, TTFT_QUANTILE = 128, 0.9
USERS_KEPT = 10_000  # the ones that were idle for longest are forgotten
LENGTHS_KEPT = 32  # of a user and a prompt length
LEAST_LENGTHS = 4  # from which a median says something

Lengths = dict[int, deque[int]]  # by the logarithm of the prompt's length


class Load(NamedTuple):
    """Recent maxima of what immediate requests occupied; they decay with every iteration."""

    seen_s: float = -math.inf  # when an immediate request was last here
    residents: float = 0.0
    blocks: float = 0.0  # of KV memory

    def then(self, seen_s: float, residents: int, blocks: int) -> Load:
        """The load after one more iteration."""
        return Load(
            seen_s,
            max(residents, self.residents * LOAD_DECAY),
            max(blocks, self.blocks * LOAD_DECAY),
        )


class Predictor:
    """The step time, learnt as a `seams.Recorder`. It changes between iterations, never within a
    plan.

    `load`: before the first deferred request. `reach_tokens`: iterations of more tokens are not
    predicted. `margin`: median excess of recent iterations over their prediction; 0 if they were
    shorter. `ttft_s`: the TTFT that one in ten recent immediate requests exceeded; None: there were
    none."""

    def __init__(self) -> None:
        self._features = np.zeros((SIZES, KEPT, FEATURES))
        self._durations_s = np.zeros((SIZES, KEPT))  # 0: none yet
        self._seen = [0] * SIZES
        self._newest: deque[tuple[list[float], float]] = deque(maxlen=REFIT_EVERY)
        self._last: IterationRecord | None = None  # which the next one may follow at once
        self._unlearnt, self._unlearnt_s = 0, 0.0  # iterations since the last fit, their time
        self._curve: Curve | None = None  # the newest that fitted
        self._ttfts_s: deque[float] = deque(maxlen=TTFTS_KEPT)
        self.load = Load()
        self.reach_tokens = 0
        self.margin = 0.0
        self.ttft_s: float | None = None

    def iteration(self, record: IterationRecord) -> None:
        if self._last is not None:
            self._learn(self._last, record.start_s - self._last.start_s)
        self._last = record
        if not record.with_deferred:
            self.load = self.load.then(record.start_s, len(record.rows.kinds), record.used_blocks)
        self._unlearnt += 1
        self._unlearnt_s += record.duration_s

    def _learn(self, record: IterationRecord, step_s: float) -> None:
        size = (
            2 * (bisect_right(KNOTS, record.num_tokens + record.rejected_drafts) - 1)
            + record.with_deferred
        )
        at = size, self._seen[size] % KEPT
        row, step_s = features(record), max(step_s, record.duration_s)
        self._features[at] = row
        self._durations_s[at] = step_s
        self._seen[size] += 1
        self._newest.append((row, step_s))

    def request(self, record: RequestRecord) -> None:
        if record.service_class == "immediate" and record.first_token_s is not None:
            self._ttfts_s.append(record.first_token_s - record.arrival_s)
            self.ttft_s = sorted(self._ttfts_s)[int(TTFT_QUANTILE * (len(self._ttfts_s) - 1))]

    def busy(self, start_s: float, end_s: float) -> None:
        """The loop was idle: the next iteration does not follow the last one."""
        if self._last is not None:
            self._learn(self._last, 0.0)
        self._last = None

    def seconds(self, work: Work) -> float | None:
        """None: nothing is learnt yet."""
        due = self._curve is None or self._unlearnt_s >= REFIT_EVERY_S
        if due and self._unlearnt >= REFIT_EVERY:  # not before it is needed
            self._refit()
        return None if self._curve is None else self._curve.seconds(work)

    def predict(self, work: Work) -> float | None:
        """As `seconds`, but changes nothing: from any thread."""
        curve = self._fitted() or self._curve
        return None if curve is None else curve.seconds(work)

    def _refit(self) -> None:
        self._unlearnt, self._unlearnt_s = 0, 0.0
        if self._curve is not None:  # its error on unseen iterations
            predicted_s = self._curve.all_seconds(np.array([row for row, _ in self._newest]))
            errors = np.array([step_s for _, step_s in self._newest]) / predicted_s - 1
            drift = float(np.median(errors))  # not a stall
            self.margin = max(0.0, drift) if math.isfinite(drift) else 0.0
        self._curve = self._fitted() or self._curve
        largest = round(max(sum(row[1 : 1 + len(KNOTS)]) for row, _ in self._newest))
        self.reach_tokens = max(self.reach_tokens, TRUSTED_BEYOND * largest)

    def _fitted(self) -> Curve | None:
        known = self._durations_s > 0
        try:
            curve = fit(self._features[known], self._durations_s[known], MOST_PLANNING_S)
        except (np.linalg.LinAlgError, ValueError):  # these cannot be fitted
            return None
        return curve if curve.r2 >= LEAST_R2 else None


def features(record: IterationRecord) -> list[float]:
    """The work of an iteration as a row of `step_time.fit`."""
    drafts = record.accepted_drafts + record.rejected_drafts  # rows, too, and each draws
    num_tokens = record.num_tokens + record.rejected_drafts
    segments = [
        max(0, min(num_tokens, end) - start)
        for start, end in zip(KNOTS, (*KNOTS[1:], 1 << 40), strict=True)
    ]
    rows, drawn = record.batch_size + drafts, record.num_drawn + drafts
    others = rows, drawn, record.attended, record.context
    return [1.0, *segments, *others, float(record.with_deferred)]


class LengthPredictor:
    """How many tokens a request will generate: the median of what its user's requests with prompts
    of about this length generated lately, and without those, of all users."""

    def __init__(self) -> None:
        self._all: Lengths = {}
        self._users: OrderedDict[int, Lengths] = OrderedDict()

    def learn(self, user: int, prompt_tokens: int, generated: int) -> None:
        own = self._users.setdefault(user, {})
        self._users.move_to_end(user)
        if len(self._users) > USERS_KEPT:
            self._users.popitem(last=False)
        for lengths in (own, self._all):
            recent = lengths.setdefault(prompt_tokens.bit_length(), deque(maxlen=LENGTHS_KEPT))
            recent.append(generated)

    def predict(self, user: int, prompt_tokens: int) -> int | None:
        """None: nothing is learnt yet."""
        for lengths in (self._users.get(user, {}), self._all):
            recent = lengths.get(prompt_tokens.bit_length(), ())
            if len(recent) >= LEAST_LENGTHS:
                return sorted(recent)[len(recent) // 2]
        return None
