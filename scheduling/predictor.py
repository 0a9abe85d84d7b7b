"""How long an iteration will take, learnt online from those that were.

Non-negative least squares over the newest iterations. Features: a constant (an iteration reads all
weights, however little it computes); the tokens computed, in segments, since the cost of linear
layers is a curve that is flat while reading the weights bounds it and then bends with the widths
of the kernels; rows; tokens drawn (each passes through the whole vocabulary); query-key pairs; and
the sum of contexts (keys and values read). No coefficient is negative, so more work is never
predicted to take less time. Errors count relative to the duration, and the fit is repeated without
the twentieth that it fits worst, which are the machine's doing and not the work's.

As HyGen (arXiv 2501.14808, section 4.2) and the open engine Tidal predict theirs, but online. The
solver is Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23, on the normal
equations (Bro and de Jong, J. Chemometrics 11, 1997).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from seams import Advance, IterationRecord, RequestRecord

KEPT = 512  # iterations
REFIT_EVERY = 64  # iterations
LEAST_R2 = 0.8
TRIMMED = 0.05  # of the iterations, those that fit worst
TTFTS_KEPT, TTFT_QUANTILE = 128, 0.9
SEEN_OFTEN = 8  # iterations of which the slope of a segment is learnt
TRUSTED_BEYOND = 2  # times the tokens of the largest iteration that was seen
KNOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens at which the curve may bend

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """What an iteration computes."""

    tokens: float = 0
    rows: float = 0
    drawn: float = 0  # rows of which a token is drawn
    attended: float = 0  # query-key pairs
    context: float = 0  # keys read: of each row, those before its tokens and theirs

    @classmethod
    def of(cls, steps: Iterable[Advance]) -> Work:
        work = cls()
        for step in steps:
            work = work.plus(step)
        return work

    def scaled(self, by: float) -> Work:
        return Work(
            self.tokens * by,
            self.rows * by,
            self.drawn * by,
            self.attended * by,
            self.context * by,
        )

    def plus(self, step: Advance) -> Work:
        request, n = step.request, step.tokens
        start = request.computed
        return Work(
            self.tokens + n,
            self.rows + 1,
            self.drawn + (start + n == request.known),
            self.attended + n * start + n * (n + 1) // 2,
            self.context + start + n,
        )


class StepTime(Protocol):
    """A predictor as a policy uses it. It changes between iterations, never within a plan."""

    @property
    def reach_tokens(self) -> int:
        """Iterations of more tokens are not predicted."""
        ...

    @property
    def margin(self) -> float:
        """By which iterations of late took longer than was predicted, on average; 0 if shorter."""
        ...

    @property
    def ttft_s(self) -> float | None:
        """That one in ten immediate requests exceeded of late; None: there were none."""
        ...

    def seconds(self, work: Work) -> float | None:
        """None: nothing is known yet."""
        ...


class Predictor:
    """A seams.Recorder and a StepTime."""

    def __init__(self) -> None:
        self._features: Floats = np.zeros((KEPT, len(KNOTS) + 5))
        self._durations_s: Floats = np.ones(KEPT)
        self._tokens: npt.NDArray[np.int64] = np.zeros(KEPT, np.int64)
        self._seen = 0
        self.r2 = 0.0  # of the newest fit
        self.reach_tokens = 0
        self.margin = 0.0
        self.ttft_s: float | None = None
        self._ttfts_s: deque[float] = deque(maxlen=TTFTS_KEPT)
        self._slopes: list[float] = []  # of the segments of tokens; empty: no fit yet
        self._offsets: list[float] = []  # what the segments before cost
        self._others: list[float] = []  # of rows, drawn, attended, context

    # --- taking in --------------------------------------------------------------------------

    def iteration(self, record: IterationRecord) -> None:
        at = self._seen % KEPT
        self._features[at] = _features(record)
        self._durations_s[at] = record.duration_s
        self._tokens[at] = record.tokens
        self._seen += 1
        if self._seen % REFIT_EVERY == 0:
            self._fit()

    def request(self, record: RequestRecord) -> None:
        if record.service_class == "immediate" and record.first_token_s is not None:
            self._ttfts_s.append(record.first_token_s - record.arrival_s)
            self.ttft_s = sorted(self._ttfts_s)[int(TTFT_QUANTILE * (len(self._ttfts_s) - 1))]

    def busy(self, start_s: float, end_s: float) -> None:
        """Of no interest here."""

    # --- telling ----------------------------------------------------------------------------

    def seconds(self, work: Work) -> float | None:
        if not self._slopes:
            return None
        rows, drawn, attended, context = self._others
        segment = bisect_right(KNOTS, work.tokens) - 1
        return (
            self._offsets[segment]
            + self._slopes[segment] * (work.tokens - KNOTS[segment])
            + rows * work.rows
            + drawn * work.drawn
            + attended * work.attended
            + context * work.context
        )

    def _fit(self) -> None:
        n = min(self._seen, KEPT)
        features, durations_s = self._features[:n], self._durations_s[:n]
        newest = [at % KEPT for at in range(self._seen - REFIT_EVERY, self._seen)]
        if self._slopes:  # how the fit did on what it had not seen
            errors = durations_s[newest] / (features[newest] @ self._coefficients()) - 1
            self.margin = max(0.0, float(errors.mean()))
        scaled = features / durations_s[:, None]  # relative errors
        scale = np.maximum(scaled.max(axis=0), 1e-300)
        scaled = scaled / scale
        worst = np.abs(scaled @ nnls(scaled, np.ones(n)) - 1)
        good = worst <= np.quantile(worst, 1 - TRIMMED)
        x = nnls(scaled[good], np.ones(int(good.sum())))
        residuals_s = (1 - scaled[good] @ x) * durations_s[good]
        spread = float(((durations_s[good] - durations_s[good].mean()) ** 2).sum())
        self.r2 = 1 - float((residuals_s**2).sum()) / spread if spread else 0.0
        if self.r2 < LEAST_R2:
            self._slopes = []
            return
        tokens = self._tokens[:n]
        rare = [int((tokens[good] > start).sum()) < SEEN_OFTEN for start in KNOTS]
        constant, *slopes = (x[: len(KNOTS) + 1] / scale[: len(KNOTS) + 1]).tolist()
        self._offsets = [constant]
        for i, (start, end) in enumerate(pairwise((*KNOTS, 2 * KNOTS[-1]))):
            if rare[i]:  # as on average up to there
                slopes[i:] = [(self._offsets[-1] - constant) / max(start, 1)] * len(slopes[i:])
            self._offsets.append(self._offsets[-1] + slopes[i] * (end - start))
        self._slopes = slopes
        self._others = (x[len(KNOTS) + 1 :] / scale[len(KNOTS) + 1 :]).tolist()
        self.reach_tokens = TRUSTED_BEYOND * int(tokens.max())

    def _coefficients(self) -> Floats:
        return np.array([self._offsets[0], *self._slopes, *self._others])


def _features(record: IterationRecord) -> list[float]:
    tokens = record.tokens
    segments = [
        max(0, min(tokens, end) - start)
        for start, end in zip(KNOTS, (*KNOTS[1:], 1 << 40), strict=True)
    ]
    return [1.0, *segments, record.rows, record.generated, record.attended, record.context]


def nnls(a: Floats, b: Floats) -> Floats:
    """The x >= 0 for which |a x - b| is least. `a` [n, k]."""
    gram, target = a.T @ a, a.T @ b
    k = len(target)
    x = np.zeros(k)
    free: list[int] = []  # coefficients that may be above zero
    tolerance = 1e-10 * max(1.0, float(np.abs(target).max()))
    for _ in range(3 * k):
        gradient = target - gram @ x
        gradient[free] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free.append(best)
        while True:
            solved = _solve(gram, target, free)
            if not free or solved.min() > 0:
                break
            # as far towards the solution as nobody goes below zero; who meets it leaves
            now = x[free]
            shrinking = solved <= 0
            step = float((now[shrinking] / (now[shrinking] - solved[shrinking])).min())
            now = now + step * (solved - now)
            now[shrinking & (now <= tolerance)] = 0.0
            x[:] = 0.0
            x[free] = now
            free = [i for i in free if x[i] > 0.0]
        x[:] = 0.0
        x[free] = solved
    return x


def _solve(gram: Floats, target: Floats, free: Sequence[int]) -> Floats:
    part = gram[np.ix_(free, free)] + 1e-12 * np.eye(len(free))  # features may be equal
    solution: Floats = np.linalg.solve(part, target[list(free)])
    return solution
