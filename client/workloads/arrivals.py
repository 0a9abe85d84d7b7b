"""When requests arrive: renewal and modulated processes, each at unit mean rate.

A process yields a sorted path of n times with mean rate 1; dividing by a rate gives any load on
the same sample path, so that curves over load are smooth and policies can be paired (common
random numbers). The two-level plan is in ``plan.py``. Independent of prompts, files and HTTP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from client.workloads.plan import LoadPlan
from client.workloads.spec import allowed, build

Times = npt.NDArray[np.float64]


class ArrivalProcess(Protocol):
    """A shape of load."""

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        """n sorted arrival times in units of the mean gap."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced."""

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.arange(1, n + 1, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent exponential gaps, CV 1, IDC 1."""

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.cumsum(np.random.default_rng(seed).exponential(size=n))


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps with a stated CV: shape k = 1/CV^2, limiting IDC = CV^2 (Cox, Renewal Theory).

    ``burstiness`` is vLLM's name for k (``vllm bench serve --burstiness``): smaller is burstier.
    """

    cv: float | None = allowed(None, above=0)
    burstiness: float | None = allowed(None, above=0)

    def __post_init__(self) -> None:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give either cv or burstiness (= 1/cv^2)")

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        k = self.burstiness if self.cv is None else self.cv**-2
        assert k is not None  # __post_init__ saw to it
        return np.cumsum(np.random.default_rng(seed).gamma(k, 1 / k, size=n))


@dataclass(frozen=True, slots=True)
class Weibull:
    """Weibull gaps with a stated CV; the shape solves CV^2 = G(1+2/k)/G(1+1/k)^2 - 1.

    One of the two families that fit production traffic best in ServeGen (NSDI'26).
    """

    cv: float = allowed(least=0.05, most=20)

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        from scipy.optimize import brentq  # a fifth of a second, which few commands need

        def excess(k: float) -> float:
            log_ratio = math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k)
            return log_ratio - math.log1p(self.cv**2)

        k = float(brentq(excess, 0.1, 40.0, xtol=1e-15))
        gaps = np.random.default_rng(seed).weibull(k, size=n) / math.gamma(1 + 1 / k)
        return np.cumsum(gaps)


@dataclass(frozen=True, slots=True)
class Mmpp:
    """Two-state Markov-modulated Poisson process, stated free of scale.

    For a ``share`` of the time the rate is ``peak`` times the mean; a full cycle of both states
    lasts ``cycle`` mean gaps on average (Fischer and Meier-Hellstern, The MMPP cookbook).
    """

    peak: float = allowed(4.0, above=0)
    share: float = allowed(0.1, above=0)
    cycle: float = allowed(200.0, above=0)

    def __post_init__(self) -> None:
        if not self.share < 1 or self.peak * self.share > 1:
            raise ValueError("share must be < 1 and peak x share at most 1")

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        rng = np.random.default_rng(seed)
        rates = np.array([self.peak, (1 - self.peak * self.share) / (1 - self.share)])
        leave_rates = 1 / (np.array([self.share, 1 - self.share]) * self.cycle)
        state = int(rng.random() >= self.share)
        pieces: list[Times] = []
        have, start = 0, 0.0
        while have < n:
            # States alternate, so a block of sojourns is drawn at once.
            states = (state + np.arange(64)) % 2
            lengths = rng.exponential(size=64) / leave_rates[states]
            ends = start + np.cumsum(lengths)
            counts = rng.poisson(lengths * rates[states])
            begins = np.repeat(ends - lengths, counts)
            times = begins + rng.random(int(counts.sum())) * np.repeat(lengths, counts)
            pieces.append(np.sort(times))
            have += times.size
            start = float(ends[-1])
        return np.concatenate(pieces)[:n] if n else np.zeros(0)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Poisson arrivals whose rate moves linearly from ``start`` to 2 - ``start`` times the mean.

    Time-rescaled (Cinlar, Introduction to Stochastic Processes, 4.7): n arrivals given, their
    images under the cumulated rate are uniform order statistics.
    """

    start: float = allowed(0.2, least=0, most=2)

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        mass = np.sort(np.random.default_rng(seed).random(n))
        slope = 2 * (1 - self.start)
        if slope == 0:
            return mass * n
        # Solve start*x + slope/2*x^2 = mass for x, in the form that loses no digits.
        return n * 2 * mass / (self.start + np.sqrt(self.start**2 + 2 * slope * mass))


@dataclass(frozen=True, slots=True)
class Burst:
    """All at once."""

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.zeros(n)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop of ``users``; each sends the next request ``think`` s after its last answer.

    Think times are exponential. There are no intended times: the server's speed decides when the
    next request comes, so slow servers are asked less (Schroeder et al., NSDI'06).
    """

    users: int = allowed(8, least=1)
    think: float = allowed(0.0, least=0)

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        raise ValueError("a closed loop has no arrival times; it can only be sent")


PROCESSES: dict[str, type[ArrivalProcess]] = {
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "weibull": Weibull,
    "mmpp": Mmpp,
    "ramp": Ramp,
    "burst": Burst,
    "closed": Closed,
    "plan": LoadPlan,
}


def parse_arrivals(text: str) -> ArrivalProcess:
    """``poisson``, ``gamma:cv=2``, ``plan:high``, ... as a process; SpecError otherwise."""
    return build(text, PROCESSES, "arrivals")


def is_steady(process: ArrivalProcess) -> bool:
    """Whether a warm-up may be cut from a run of it."""
    return not isinstance(process, (LoadPlan, Ramp, Burst))


def horizon(process: ArrivalProcess, times: Times) -> float:
    """Where a path ends: n mean gaps where that was planned, else at the last arrival."""
    if isinstance(process, (LoadPlan, Ramp)):
        return float(times.size)
    return float(times[-1]) if times.size else 0.0
