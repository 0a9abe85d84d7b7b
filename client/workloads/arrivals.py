"""When requests arrive: processes at unit mean rate.

A process yields a sorted path of n times with mean rate 1; dividing by a rate gives any load on
the same sample path, so that curves over load are smooth and policies can be paired (common
random numbers). Independent of prompts, files and HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from client.workloads.spec import Count, Least0, Positive, build

Times = npt.NDArray[np.float64]

_GRID = 4096
_ZIPF_STEPS = 1000
Shape = Annotated[float, Field(ge=0.005, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A shape of load. ``unit_times`` gives n sorted arrival times in units of the mean gap.

    ``steady``: a warm-up may be cut from a run of it. ``planned``: a path ends after n mean gaps,
    otherwise at the last arrival. ``users`` is None for an open loop.
    """

    unit_times: Callable[[int, np.random.SeedSequence], Times]
    steady: bool = True
    planned: bool = False
    users: int | None = None
    think: float = 0.0


def _constant() -> Arrivals:
    return Arrivals(lambda n, _: np.arange(1, n + 1, dtype=np.float64))


def _poisson() -> Arrivals:
    """Independent exponential gaps, CV 1, IDC 1."""
    return Arrivals(lambda n, seed: np.cumsum(np.random.default_rng(seed).exponential(size=n)))


def _gamma(cv: Positive | None = None, burstiness: Positive | None = None) -> Arrivals:
    """Gamma gaps with a stated CV: shape k = 1/CV^2, limiting IDC = CV^2 (Cox, Renewal Theory).

    ``burstiness`` is vLLM's name for k (``vllm bench serve --burstiness``): smaller is burstier.
    """
    if cv is not None and burstiness is None:
        k = cv**-2
    elif burstiness is not None and cv is None:
        k = burstiness
    else:
        raise ValueError("give either cv or burstiness (= 1/cv^2)")
    return Arrivals(lambda n, seed: np.cumsum(np.random.default_rng(seed).gamma(k, 1 / k, size=n)))


def _burst() -> Arrivals:
    """All at once."""
    return Arrivals(lambda n, _: np.zeros(n), steady=False)


def closed(users: Count = 8, think: Least0 = 0.0) -> Arrivals:
    """A closed loop of ``users``; each sends the next request ``think`` s after its last answer.

    Think times are exponential. There are no intended times: the server's speed decides when the
    next request comes, so slow servers are asked less (Schroeder et al., NSDI'06).
    """
    return Arrivals(lambda n, _: np.zeros(n), users=users, think=think)


@dataclass(slots=True)
class LoadPlan:
    """The two-level plan of Vexless (SIGMOD'24, 10.1145/3654990) and FlexiRequest, specified
    independently: an outer distribution divides n requests among g bins of equal width, an inner
    one places them inside their bin. A wanted CV of the rate mixes the outer distribution with the
    uniform one; a closed form gives the weight. ``docs/load.md`` derives it.

    ``a1`` shapes the outer family: standard deviation of a Gaussian in units of the horizon,
    exponent of a Zipf law; ``a2`` is the exponent of the inner one. ``cv_rate`` asks for a
    burstiness; None leaves the outer family as it is. A ``level`` stands for all the others.
    """

    level: Literal["low", "medium", "high"] | None = None
    outer: Literal["uniform", "gaussian", "inv_gaussian", "zipf"] = "uniform"
    inner: Literal["uniform", "zipf"] = "uniform"
    bins: Count = 100
    a1: Shape = 1.0
    a2: Shape = 1.0
    cv_rate: Least0 | None = None

    def __post_init__(self) -> None:
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if self.level is not None and changed != ["level"]:
            raise ValueError(f"{', '.join(changed[1:])} cannot be combined with level")
        for name, value in _LEVELS.get(self.level, {}).items():
            setattr(self, name, value)

    def shares(self, n: int, seed: np.random.SeedSequence) -> Times:
        """The share of the requests that each bin is planned to hold: (bins,), sum 1."""
        pi = self._outer_family(np.random.default_rng(_child(seed, 0)))
        weight = self._mixing_weight(pi)
        return weight * pi + (1 - weight) / self.bins

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        """n sorted arrival times over a horizon of n mean gaps, every bin of it in use."""
        wanted = self.shares(n, seed) * n
        counts = np.floor(wanted).astype(np.int64)
        missing = n - int(counts.sum())  # by largest remainder, so that they add up to n
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
        rng = np.random.default_rng(_child(seed, 1))
        inside = rng.random(n)
        if self.inner == "zipf":
            # Jittered and over a fixed support, so that bursts lean to the front without ties.
            mass = np.cumsum(np.arange(1, _ZIPF_STEPS + 1) ** -self.a2)
            step = np.searchsorted(mass, inside * mass[-1], side="right")
            inside = (np.minimum(step, _ZIPF_STEPS - 1) + rng.random(n)) / _ZIPF_STEPS
        times = np.repeat(np.arange(self.bins), counts) + inside
        times.sort()
        return times * (n / self.bins)

    def _mixing_weight(self, pi: Times) -> float:
        """Of the family beside the uniform one, so that ``cv_rate`` comes out."""
        if self.cv_rate is None:
            return 1.0
        most = math.sqrt(max(self.bins * float(np.sum(pi**2)) - 1, 0.0))
        if self.cv_rate > most * (1 + 1e-9):
            raise ValueError(
                f"cv_rate={self.cv_rate:g} is more than outer={self.outer}, a1={self.a1:g}, "
                f"bins={self.bins} can give ({most:.3g}); raise a1 or bins, or take outer=zipf"
            )
        return min(self.cv_rate / most, 1.0) if most else 0.0

    def _outer_family(self, rng: np.random.Generator) -> Times:
        g = self.bins
        if self.outer == "zipf":
            ranked: Times = rng.permutation(np.arange(1, g + 1) ** -self.a1)
            shares: Times = ranked / ranked.sum()
            return shares
        if self.outer == "uniform":
            return np.full(g, 1 / g)
        x = np.linspace(0, 1, _GRID + 1)
        bell = np.exp(-((x - 0.5) ** 2) / (2 * self.a1**2))
        density = bell if self.outer == "gaussian" else 1 - bell
        cdf = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        return np.diff(np.interp(np.linspace(0, 1, g + 1), x, cdf / cdf[-1]))


_LEVELS: dict[str | None, dict[str, Any]] = {
    "low": {"outer": "inv_gaussian", "a1": 1.15, "bins": 15, "cv_rate": 0.1},
    "medium": {"outer": "zipf", "a1": 1.15, "cv_rate": 0.5},
    "high": {"outer": "zipf", "a1": 1.15, "inner": "zipf", "a2": 1.05, "cv_rate": 1.5},
}


def _child(seed: np.random.SeedSequence, key: int) -> np.random.SeedSequence:
    """An independent stream; unlike ``spawn`` it is the same one each time it is asked for."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, key))


_PROCESSES: dict[str, Callable[..., Arrivals | LoadPlan]] = {
    "constant": _constant,
    "poisson": _poisson,
    "gamma": _gamma,
    "burst": _burst,
    "closed": closed,
    "plan": LoadPlan,
}


def parse_arrivals(text: str) -> Arrivals:
    """``poisson``, ``gamma:cv=2``, ``plan:high``, ... as a process; SpecError otherwise."""
    made = build(text, _PROCESSES, "arrivals")
    if isinstance(made, LoadPlan):
        return Arrivals(made.unit_times, steady=False, planned=True)
    return made


def horizon(process: Arrivals, times: Times) -> float:
    """Where a path ends."""
    if process.planned:
        return float(times.size)
    return float(times[-1]) if times.size else 0.0
