"""When requests arrive: processes at unit mean rate.

A process yields a sorted path of n times with mean rate 1; dividing by a rate gives any load on
the same sample path, so that curves over load are smooth and policies can be paired (common
random numbers). The two-level plan is in ``plan.py``. Independent of prompts, files and HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from client.workloads.plan import LoadPlan
from client.workloads.spec import Count, Least0, Positive, build

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

    cv: Positive | None = None
    burstiness: Positive | None = None

    def __post_init__(self) -> None:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give either cv or burstiness (= 1/cv^2)")

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        k = self.burstiness if self.cv is None else self.cv**-2
        assert k is not None  # __post_init__ saw to it
        return np.cumsum(np.random.default_rng(seed).gamma(k, 1 / k, size=n))


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

    users: Count = 8
    think: Least0 = 0.0

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Times:
        return np.zeros(n)


PROCESSES: dict[str, type[ArrivalProcess]] = {
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "burst": Burst,
    "closed": Closed,
    "plan": LoadPlan,
}


def parse_arrivals(text: str) -> ArrivalProcess:
    """``poisson``, ``gamma:cv=2``, ``plan:high``, ... as a process; SpecError otherwise."""
    return build(text, PROCESSES, "arrivals")


def is_steady(process: ArrivalProcess) -> bool:
    """Whether a warm-up may be cut from a run of it."""
    return not isinstance(process, (LoadPlan, Burst))


def horizon(process: ArrivalProcess, times: Times) -> float:
    """Where a path ends: n mean gaps where that was planned, else at the last arrival."""
    if isinstance(process, LoadPlan):
        return float(times.size)
    return float(times[-1]) if times.size else 0.0
