"""How many tokens requests have. Independent of arrivals, prompts and HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from client.workloads.spec import allowed, build

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


def _bounds(low: int, high: int) -> None:
    if not 1 <= low <= high:
        raise ValueError(f"sizes must satisfy 1 <= low <= high, not {low}..{high}")


@dataclass(frozen=True, slots=True)
class Fixed:
    """All the same."""

    tokens: int

    def __post_init__(self) -> None:
        _bounds(self.tokens, self.tokens)

    def at(self, levels: Levels) -> Sizes:
        return np.full(levels.size, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Equally likely from low to high, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.low - 0.5 + levels * (self.high - self.low + 1), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Normal:
    """Rounded and clipped (not redrawn), so the bounds hold a little more than their share."""

    mean: float = allowed(100.0)
    sd: float = allowed(50.0, least=0)
    low: int = 1
    high: int = 200

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.mean + self.sd * ndtri(levels), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Median times exp of a Gaussian with deviation sigma; rounded and clipped."""

    median: float = allowed(above=0)
    sigma: float = allowed(least=0)
    low: int = 1
    high: int = 2048

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.median * np.exp(self.sigma * ndtri(levels)), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Zipf:
    """P(low + k - 1) ~ k^-a for k = 1 .. high - low + 1."""

    a: float = allowed(1.1, least=0)
    low: int = 1
    high: int = 200

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)

    def at(self, levels: Levels) -> Sizes:
        mass = np.cumsum(np.arange(1, self.high - self.low + 2) ** -self.a)
        steps = np.searchsorted(mass, levels * mass[-1], side="right")
        sizes: Sizes = self.low + np.minimum(steps, mass.size - 1)
        return sizes


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the values, written 1/25/100, equally likely."""

    values: str

    def __post_init__(self) -> None:
        if not self.values.replace("/", "").isdigit() or min(self._list()) < 1:
            raise ValueError(f"values must be whole numbers >= 1 like 1/25/100: {self.values!r}")

    def _list(self) -> list[int]:
        return [int(v) for v in self.values.split("/") if v]

    def at(self, levels: Levels) -> Sizes:
        values: Sizes = np.array(self._list(), dtype=np.int64)
        return values[(levels * values.size).astype(np.int64)]


SIZE_LAWS: dict[str, type[SizeLaw]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "normal": Normal,
    "lognormal": Lognormal,
    "zipf": Zipf,
    "choice": OneOf,
}


def parse_sizes(text: str) -> SizeLaw:
    """``normal:100,50,1,200``, ``fixed:64``, ... as a law; SpecError says what is wrong."""
    return build(text, SIZE_LAWS, "sizes")


def _clip(values: npt.NDArray[np.float64], low: int, high: int) -> Sizes:
    return np.clip(np.rint(values), low, high).astype(np.int64)
