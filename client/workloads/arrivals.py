"""When requests arrive: renewal and modulated processes, each at unit mean rate.

A process yields a sorted path of n times with mean rate 1; dividing by a rate gives any load on
the same sample path, so that curves over load are smooth and policies can be paired (common
random numbers). The two-level plan is in ``plan.py``. Independent of prompts, files and HTTP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from client.workloads.plan import LoadPlan
from client.workloads.spec import build

Times = npt.NDArray[np.float64]


class ArrivalProcess(Protocol):
    """A shape of load. ``steady``: whether a warm-up may be cut from a run of it."""

    steady: ClassVar[bool]

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        """n sorted arrival times in units of the mean gap."""
        ...


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a number > 0, not {value}")


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced."""

    steady: ClassVar[bool] = True

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.arange(1, n + 1, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent exponential gaps, CV 1, IDC 1."""

    steady: ClassVar[bool] = True

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.cumsum(np.random.default_rng(seed).exponential(size=n))


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps with a stated CV: shape k = 1/CV^2, limiting IDC = CV^2 (Cox, Renewal Theory).

    ``burstiness`` is vLLM's name for k (``vllm bench serve --burstiness``): smaller is burstier.
    """

    cv: float | None = None
    burstiness: float | None = None
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give either cv or burstiness (= 1/cv^2)")
        if self.cv is not None:
            _positive(cv=self.cv)
        if self.burstiness is not None:
            _positive(burstiness=self.burstiness)

    @property
    def shape(self) -> float:
        if self.burstiness is not None:
            return self.burstiness
        assert self.cv is not None  # __post_init__ saw to it
        return self.cv**-2

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        rng = np.random.default_rng(seed)
        return np.cumsum(rng.gamma(self.shape, 1 / self.shape, size=n))


@dataclass(frozen=True, slots=True)
class Weibull:
    """Weibull gaps with a stated CV; the shape solves CV^2 = G(1+2/k)/G(1+1/k)^2 - 1.

    One of the two families that fit production traffic best in ServeGen (NSDI'26).
    """

    cv: float
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.05 <= self.cv <= 20:
            raise ValueError(f"cv must be between 0.05 and 20, not {self.cv}")

    @property
    def shape(self) -> float:
        from scipy.optimize import brentq  # a fifth of a second, which few commands need

        def excess(k: float) -> float:
            log_ratio = math.lgamma(1 + 2 / k) - 2 * math.lgamma(1 + 1 / k)
            return log_ratio - math.log1p(self.cv**2)

        return float(brentq(excess, 0.1, 40.0, xtol=1e-15))

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        k = self.shape
        gaps = np.random.default_rng(seed).weibull(k, size=n) / math.gamma(1 + 1 / k)
        return np.cumsum(gaps)


@dataclass(frozen=True, slots=True)
class Mmpp:
    """Two-state Markov-modulated Poisson process, stated free of scale.

    For a ``share`` of the time the rate is ``peak`` times the mean; a full cycle of both states
    lasts ``cycle`` mean gaps on average (Fischer and Meier-Hellstern, The MMPP cookbook).
    """

    peak: float = 4.0
    share: float = 0.1
    cycle: float = 200.0
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _positive(peak=self.peak, share=self.share, cycle=self.cycle)
        if not self.share < 1 or self.peak * self.share > 1:
            raise ValueError("share must be < 1 and peak x share at most 1")

    @property
    def rates(self) -> tuple[float, float]:
        return self.peak, (1 - self.peak * self.share) / (1 - self.share)

    @property
    def leave_rates(self) -> tuple[float, float]:
        return 1 / (self.share * self.cycle), 1 / ((1 - self.share) * self.cycle)

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        rng = np.random.default_rng(seed)
        state = int(rng.random() >= self.share)
        pieces: list[Times] = []
        have, start = 0, 0.0
        while have < n:
            # States alternate, so a block of sojourns is drawn at once.
            states = (state + np.arange(64)) % 2
            lengths = rng.exponential(size=64) / np.asarray(self.leave_rates)[states]
            ends = start + np.cumsum(lengths)
            counts = rng.poisson(lengths * np.asarray(self.rates)[states])
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

    start: float = 0.2
    steady: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 2:
            raise ValueError(f"start must be between 0 and 2, not {self.start}")

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

    steady: ClassVar[bool] = False

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.zeros(n)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed loop of ``users``; each sends the next request ``think`` s after its last answer.

    Think times are exponential. There are no intended times: the server's speed decides when the
    next request comes, so slow servers are asked less (Schroeder et al., NSDI'06).
    """

    users: int = 8
    think: float = 0.0
    steady: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.users < 1:
            raise ValueError(f"users must be at least 1, not {self.users}")
        if not (math.isfinite(self.think) and self.think >= 0):
            raise ValueError(f"think must be a number of seconds >= 0, not {self.think}")

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


def horizon(process: ArrivalProcess, times: Times) -> float:
    """Where a path ends: n mean gaps where that was planned, else at the last arrival."""
    if isinstance(process, (LoadPlan, Ramp)):
        return float(times.size)
    return float(times[-1]) if times.size else 0.0
