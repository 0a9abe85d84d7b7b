"""How many tokens requests have. Independent of arrivals, prompts and HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from client.workloads.spec import Count, Least0, Positive, SpecError, build

Sizes = npt.NDArray[np.int64]
Levels = npt.NDArray[np.float64]


class SizeLaw(Protocol):
    """The number of tokens that each request has."""

    def at(self, levels: Levels) -> Sizes:
        """Its quantiles at levels in (0, 1): whole numbers of tokens, each at least 1."""
        ...


def draw(law: SizeLaw, n: int, rng: np.random.Generator) -> Sizes:
    """n sizes, stratified: one from each n-th part of the law, in random order.

    So two seeds give the same work in a different order, and the comparison need not average the
    difference away (Law, Simulation Modeling and Analysis, 11.3).
    """
    return law.at((rng.permutation(n) + rng.random(n)) / n)


@dataclass(frozen=True, slots=True)
class Fixed:
    """All the same."""

    tokens: Count

    def at(self, levels: Levels) -> Sizes:
        return np.full(levels.size, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Equally likely from low to high, both included."""

    low: Count
    high: Count

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.low - 0.5 + levels * (self.high - self.low + 1), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Normal:
    """Rounded and clipped (not redrawn), so the bounds hold a little more than their share."""

    mean: Positive = 100.0
    sd: Least0 = 50.0
    low: Count = 1
    high: Count = 200

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.mean + self.sd * ndtri(levels), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Median times exp of a Gaussian with deviation sigma; rounded and clipped."""

    median: Positive
    sigma: Least0
    low: Count = 1
    high: Count = 2048

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.median * np.exp(self.sigma * ndtri(levels)), self.low, self.high)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the values, written 1/25/100, equally likely."""

    values: str

    def __post_init__(self) -> None:
        if not all(v.isdigit() and int(v) for v in self.values.split("/")):
            raise ValueError("values must be whole numbers >= 1 like 1/25/100")

    def at(self, levels: Levels) -> Sizes:
        values = np.array([int(v) for v in self.values.split("/")], dtype=np.int64)
        return values[(levels * values.size).astype(np.int64)]


SIZE_LAWS: dict[str, type[SizeLaw]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": Lognormal,
    "choice": OneOf,
}


def parse_sizes(text: str) -> SizeLaw:
    """``normal:100,50,1,200``, ``fixed:64``, ... as a law; SpecError says what is wrong."""
    law = build(text, SIZE_LAWS, "sizes")
    if isinstance(law, (Uniform, Normal, Lognormal)) and law.low > law.high:
        raise SpecError(f"sizes {text!r}: low is more than high")
    return law


def _clip(values: npt.NDArray[np.float64], low: int, high: int) -> Sizes:
    return np.clip(np.rint(values), low, high).astype(np.int64)
