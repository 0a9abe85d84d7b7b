"""How many tokens requests have. Independent of arrivals, prompts and HTTP.

A law gives its quantiles at levels in (0, 1): whole numbers of tokens, each at least 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from client.workloads.spec import Count, Least0, Positive, build

Sizes = npt.NDArray[np.int64]
Levels = npt.NDArray[np.float64]
SizeLaw = Callable[[Levels], Sizes]


def draw(law: SizeLaw, n: int, rng: np.random.Generator) -> Sizes:
    """n sizes, stratified: one from each n-th part of the law, in random order.

    So two seeds give the same work in a different order, and the comparison need not average the
    difference away (Law, Simulation Modeling and Analysis, 11.3).
    """
    return law((rng.permutation(n) + rng.random(n)) / n)


def _fixed(tokens: Count) -> SizeLaw:
    return lambda levels: np.full(levels.size, tokens, dtype=np.int64)


def _uniform(low: Count, high: Count) -> SizeLaw:
    """Equally likely from low to high, both included."""
    return _clipped(lambda levels: low - 0.5 + levels * (high - low + 1), low, high)


def _normal(
    mean: Positive = 100.0, sd: Least0 = 50.0, low: Count = 1, high: Count = 200
) -> SizeLaw:
    """Clipped, not redrawn, so the bounds hold a little more than their share."""
    return _clipped(lambda levels: mean + sd * ndtri(levels), low, high)


def _lognormal(median: Positive, sigma: Least0, low: Count = 1, high: Count = 2048) -> SizeLaw:
    """Median times exp of a Gaussian with deviation sigma."""
    return _clipped(lambda levels: median * np.exp(sigma * ndtri(levels)), low, high)


def _choice(values: str) -> SizeLaw:
    """One of the values, written 1/25/100, equally likely."""
    if not all(v.isdigit() and int(v) for v in values.split("/")):
        raise ValueError("values must be whole numbers >= 1 like 1/25/100")
    sizes = np.array([int(v) for v in values.split("/")], dtype=np.int64)
    return lambda levels: sizes[(levels * sizes.size).astype(np.int64)]


def _clipped(law: Callable[[Levels], Levels], low: int, high: int) -> SizeLaw:
    if low > high:
        raise ValueError("low is more than high")
    return lambda levels: np.clip(np.rint(law(levels)), low, high).astype(np.int64)


_LAWS: dict[str, Callable[..., SizeLaw]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "choice": _choice,
}


def parse_sizes(text: str) -> SizeLaw:
    """``normal:100,50,1,200``, ``fixed:64``, ... as a law; SpecError says what is wrong."""
    return build(text, _LAWS, "sizes")
