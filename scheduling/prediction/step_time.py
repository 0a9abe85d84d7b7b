"""The duration of an iteration as a curve over its work, fitted to past iterations.

Non-negative least squares. Features: a constant (an iteration reads all weights, however little it
computes); the tokens computed, in segments, since the cost of linear layers is flat while reading
the weights limits it and then bends with the widths of the kernels; rows; tokens drawn (each takes
the whole vocabulary); query-key pairs; the sum of contexts (keys and values read); and whether
there are deferred requests, since planning for them takes time even if none takes part.
No coefficient is negative, so more work is never predicted to take less time. Errors count relative
to the duration, and the fit is repeated without outliers: iterations in which the machine also did
other work (Rousseeuw and Leroy, "Robust Regression and Outlier Detection", 1987, chapter
1). R2 is of those that are left.

The solver is Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23, on the normal
equations (Bro and de Jong, J. Chemometrics 11, 1997).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seams import Advance, Served, counted

ROUNDS = 3  # of fitting, each without the outliers of the previous one
OUTLIER = 4.5  # times the median error: three standard deviations, if errors were normal
LEAST_OUTLIER = 0.01  # of the duration: if most fit exactly, the median error is close to 0
SEEN_OFTEN = 8  # iterations needed in a segment to learn its slope
KNOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens at which the curve may bend
FEATURES = len(KNOTS) + 6

Floats = npt.NDArray[np.float64]


class Work(NamedTuple):
    """The work of an iteration. A tuple, since a plan makes dozens."""

    num_tokens: float = 0
    num_rows: float = 0
    num_drawn: float = 0  # rows that draw a token
    attended: float = 0  # query-key pairs
    context: float = 0  # keys read: in each row, those of its tokens and of all before them
    deferred: bool = False  # planned while there are deferred requests

    @classmethod
    def of(cls, steps: Sequence[Advance]) -> Work:
        tokens, pairs, keys = counted([one.computed for one, _ in steps], [n for _, n in steps])
        drawn = sum([request.computed + n == request.known for request, n in steps])
        deferred = any(request.service_class == "deferred" for request, _ in steps)
        return cls(tokens, len(steps), drawn, pairs, keys, deferred)

    @classmethod
    def done(cls, rows: Sequence[Served]) -> Work:
        """Of rows that were computed."""
        counts = [row.computed for row in rows]
        ends = [row.request.computed for row in rows]
        pairs = [n * (end - n) + n * (n + 1) // 2 for n, end in zip(counts, ends, strict=True)]
        drawn = sum([row.generated > 0 for row in rows])
        return cls(sum(counts), len(rows), drawn, sum(pairs), sum(ends))

    def scaled(self, by: float) -> Work:
        tokens, rows, drawn, attended, context = (part * by for part in self[:5])
        return Work(tokens, rows, drawn, attended, context, self.deferred)

    def beside(self, other: Work) -> Work:
        return Work(
            self.num_tokens + other.num_tokens,
            self.num_rows + other.num_rows,
            self.num_drawn + other.num_drawn,
            self.attended + other.attended,
            self.context + other.context,
            self.deferred or other.deferred,
        )

    def plus(self, step: Advance, cached: int = 0) -> Work:
        """`cached`: tokens of a waiting request that it need not compute."""
        request, n = step.request, step.num_tokens
        start = request.computed + cached
        return Work(
            self.num_tokens + n,
            self.num_rows + 1,
            self.num_drawn + (start + n == request.known),
            self.attended + n * start + n * (n + 1) // 2,
            self.context + start + n,
            self.deferred or request.service_class == "deferred",
        )


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds, as a sum of parts."""

    offsets: Sequence[float]  # of the segments of tokens: the constant plus the earlier segments
    slopes: Sequence[float]  # of the segments, per token
    others: Sequence[float]  # per row, drawn token, pair, token of context; planning
    r2: float

    def seconds(self, work: Work) -> float:
        rows, drawn, attended, context, planning = self.others
        segment = bisect_right(KNOTS, work.num_tokens) - 1
        return (
            self.offsets[segment]
            + self.slopes[segment] * (work.num_tokens - KNOTS[segment])
            + rows * work.num_rows
            + drawn * work.num_drawn
            + attended * work.attended
            + context * work.context
            + planning * work.deferred
        )

    def all_seconds(self, features: Floats) -> Floats:
        """Durations of iterations with these features [n, FEATURES]."""
        result: Floats = features @ np.array([self.offsets[0], *self.slopes, *self.others])
        return result


def fit(features: Floats, durations_s: Floats, most_planning_s: float = math.inf) -> Curve:
    """`features` [n, FEATURES], `durations_s` [n]. `most_planning_s`: the most that
    planning for deferred requests may take."""
    tokens, others = features[:, 1 : len(KNOTS) + 1], features[:, len(KNOTS) + 1 :]
    sizes = np.searchsorted(KNOTS, tokens.sum(axis=1)) - 1  # a knot ends its segment
    seen = np.bincount(sizes, minlength=len(KNOTS))
    often = seen >= SEEN_OFTEN
    # segments that few iterations ended in have the slope of the next one that many did
    pieces: npt.NDArray[np.int64] = np.cumsum(often) - often
    merged = np.eye(len(KNOTS))[pieces]
    columns = np.hstack([features[:, :1], tokens @ merged, others])
    scaled = columns / durations_s[:, None]  # relative errors
    scale = np.maximum(scaled.max(axis=0), 1e-300)
    scaled = scaled / scale
    good = np.ones(len(scaled), bool)
    for _ in range(ROUNDS):
        x = nnls(scaled[good], np.ones(int(good.sum())))
        error = np.abs(scaled @ x - 1)
        good = error <= max(OUTLIER * float(np.median(error)), LEAST_OUTLIER)
    residuals_s = (1 - scaled[good] @ x) * durations_s[good]
    spread = float(((durations_s[good] - durations_s[good].mean()) ** 2).sum())
    x = x / scale
    constant, slopes = float(x[0]), x[1 + pieces].tolist()
    offsets = [constant]
    for i, (start, end) in enumerate(pairwise((*KNOTS, 2 * KNOTS[-1]))):
        if not often[i:].any():  # as on average up to here
            slopes[i] = (offsets[-1] - constant) / max(start, 1)
        offsets.append(offsets[-1] + slopes[i] * (end - start))
    r2 = 1 - float((residuals_s**2).sum()) / spread if spread else 0.0
    x[-1] = min(x[-1], most_planning_s)
    return Curve(offsets[:-1], slopes, x[len(KNOTS) + 1 :].tolist(), r2)


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
            part = gram[np.ix_(free, free)] + 1e-12 * np.eye(len(free))  # features may be equal
            solved = np.linalg.solve(part, target[free])
            if not free or solved.min() > 0:
                break
            # as far towards the solution as all stay above zero; coefficients that reach zero leave
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
