"""The contents of requests: numbers of tokens, and prompts. Independent of arrivals and HTTP."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from client.workloads.spec import SpecError, build
from client.workloads.words import Words, embedded_words

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

    mean: float = 100.0
    sd: float = 50.0
    low: int = 1
    high: int = 200

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)
        if not (self.sd >= 0 and math.isfinite(self.sd) and math.isfinite(self.mean)):
            raise ValueError("mean must be a number and sd a number >= 0")

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.mean + self.sd * ndtri(levels), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Median times exp of a Gaussian with deviation sigma; rounded and clipped."""

    median: float
    sigma: float
    low: int = 1
    high: int = 2048

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)
        if not (self.median > 0 and self.sigma >= 0 and math.isfinite(self.median * self.sigma)):
            raise ValueError("median must be > 0 and sigma >= 0")

    def at(self, levels: Levels) -> Sizes:
        return _clip(self.median * np.exp(self.sigma * ndtri(levels)), self.low, self.high)


@dataclass(frozen=True, slots=True)
class Zipf:
    """P(low + k - 1) ~ k^-a for k = 1 .. high - low + 1."""

    a: float = 1.1
    low: int = 1
    high: int = 200

    def __post_init__(self) -> None:
        _bounds(self.low, self.high)
        if not (math.isfinite(self.a) and self.a >= 0):
            raise ValueError(f"a must be a number >= 0, not {self.a}")

    def at(self, levels: Levels) -> Sizes:
        mass = np.cumsum(np.arange(1, self.high - self.low + 2) ** -self.a)
        steps = np.searchsorted(mass, levels * mass[-1], side="right")
        sizes: Sizes = self.low + np.minimum(steps, mass.size - 1)
        return sizes


@dataclass(frozen=True, slots=True)
class Choice:
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
    "choice": Choice,
}


def parse_sizes(text: str) -> SizeLaw:
    """``normal:100,50,1,200``, ``fixed:64``, ... as a law; SpecError says what is wrong."""
    return build(text, SIZE_LAWS, "sizes")


def _clip(values: npt.NDArray[np.float64], low: int, high: int) -> Sizes:
    return np.clip(np.rint(values), low, high).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompt texts, and their lengths in tokens if known."""

    texts: list[str]
    tokens: list[int] | None


def make_prompts(
    kind: str, lengths: Sizes, rng: np.random.Generator, words: Words | None = None
) -> Prompts:
    """Prompts of one kind: ``words``, ``request``, ``sharegpt:FILE`` or ``lines:FILE``.

    ``words`` strings together words that are one token each, by default the embedded vocabulary's,
    so that a prompt has exactly the wanted number of tokens; the other kinds have the lengths they
    have.
    """
    name, _, path = kind.partition(":")
    n = lengths.size
    if name == "words":
        words = words or embedded_words()
        lengths = np.maximum(lengths, words.before + 1)
        picked = iter(rng.integers(len(words.further), size=int(lengths.sum())).tolist())
        firsts = rng.integers(len(words.starts), size=n).tolist()
        texts = [
            words.starts[first] + "".join(words.further[w] for w in itertools.islice(picked, more))
            for first, more in zip(firsts, (lengths - words.before - 1).tolist(), strict=True)
        ]
        return Prompts(texts, lengths.tolist())
    if name == "request":
        return Prompts([f"Request {i}" for i in range(n)], None)
    if name not in ("sharegpt", "lines") or not path:
        raise SpecError(
            f"prompts {kind!r} are unknown; allowed: words, request, shared:..., "
            "conversation:..., sharegpt:FILE, lines:FILE"
        )
    pool = (_read_sharegpt if name == "sharegpt" else _read_lines)(Path(path))
    return Prompts([pool[i] for i in rng.integers(len(pool), size=n).tolist()], None)


def _read_sharegpt(path: Path) -> list[str]:
    """First human turns of the published format: [{"conversations": [{"from", "value"}]}]."""
    try:
        entries = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: expected JSON, {error}") from None
    expected = '{"conversations": [{"from": "human", "value": text}, ...]}'
    if not isinstance(entries, list):
        raise SpecError(f"{path}: expected a list of {expected}")
    prompts = []
    for number, entry in enumerate(entries):
        try:
            turn = entry["conversations"][0] if entry["conversations"] else None
            if turn is not None and turn["from"] == "human" and turn["value"].strip():
                prompts.append(turn["value"])
        except (KeyError, TypeError, AttributeError):
            raise SpecError(f"{path}: entry {number}: expected {expected}") from None
    if not prompts:
        raise SpecError(f"{path} contains no conversation that a human begins")
    return prompts


def _read_lines(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None
    if not lines:
        raise SpecError(f"{path} contains no prompts")
    return lines
