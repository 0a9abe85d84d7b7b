"""When requests arrive: processes at unit mean rate.

A process yields a sorted path of n times with mean rate 1; dividing by a rate gives any load on
the same sample path, so that curves over load are smooth and policies can be paired (common
random numbers). The two-level plan is in ``plan.py``. Independent of prompts, files and HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client.workloads.plan import LoadPlan
from client.workloads.spec import Count, Least0, Positive, build

Times = npt.NDArray[np.float64]


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
