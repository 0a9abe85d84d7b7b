"""The two-level plan: how many requests fall into each bin, and where inside it.

The shape of Vexless (SIGMOD'24, 10.1145/3654990) and FlexiRequest, specified independently: an
outer distribution divides n requests among g bins of equal width, an inner one places them inside
their bin. The burstiness mixes the outer distribution with the uniform one; a closed form gives the
weight for a wanted rate CV or index of dispersion. ``docs/load.md`` derives it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from client.workloads.spec import allowed

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

OUTER = ("uniform", "gaussian", "inv_gaussian", "poisson", "zipf", "zipf_draw")
INNER = ("uniform", "gaussian", "inv_gaussian", "poisson", "zipf")
_GRID = 4096
_ZIPF_STEPS = 1000


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A two-level plan.

    ``a1``/``mu1`` shape the outer family, ``a2``/``mu2`` the inner one: standard deviation and
    centre of a Gaussian in units of the horizon (the bin), exponent of a Zipf law, mean of a
    Poisson count. ``b1``/``b2`` flatten: 0 leaves a family as it is, 1 makes it uniform.
    ``cv_rate`` or ``idc`` (at bin width) ask for a burstiness and b1 is solved for. ``counts``:
    ``exact`` rounds the plan, ``multinomial`` draws from it. "poisson" as inner family is the
    uniform one: a Poisson process given its count is just that.
    """

    level: str | None = allowed(None, among=("low", "medium", "high"))
    outer: str = allowed("uniform", among=OUTER)
    inner: str = allowed("uniform", among=INNER)
    bins: int = allowed(100, least=1)
    a1: float = 1.0
    a2: float = 1.0
    mu1: float = 0.5
    mu2: float = 0.5
    b1: float = allowed(0.0, least=0, most=1)
    b2: float = allowed(0.0, least=0, most=1)
    cv_rate: float | None = allowed(None, least=0)
    idc: float | None = allowed(None, least=0)
    counts: str = allowed("exact", among=("exact", "multinomial"))

    def __post_init__(self) -> None:
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if self.level is not None and changed != ["level"]:
            raise ValueError(f"{', '.join(changed[1:])} cannot be combined with level")
        if self.cv_rate is not None and self.idc is not None:
            raise ValueError("give cv_rate or idc, not both")
        for dial, setting in (("cv_rate", self.cv_rate), ("idc", self.idc)):
            if setting is not None and self.b1:
                raise ValueError(f"{dial} solves for b1; do not give both")
        for name, family, a in (("a1", self.outer, self.a1), ("a2", self.inner, self.a2)):
            least = {"zipf": 0.0, "zipf_draw": 1.001, "poisson": 0.001}.get(family, 0.005)
            if not (math.isfinite(a) and a >= least):
                raise ValueError(f"{name} must be at least {least} for {family}, not {a}")

    @property
    def resolved(self) -> LoadPlan:
        """The plan that a level means; itself otherwise."""
        return self if self.level is None else PRESETS[self.level]

    def shares(self, n: int, seed: np.random.SeedSequence) -> Floats:
        """The share of the requests that each bin is planned to hold: (bins,), sum 1."""
        plan = self.resolved
        pi = plan._outer_family(np.random.default_rng(_child(seed, 0)))
        weight = plan._mixing_weight(pi, n)
        return weight * pi + (1 - weight) / plan.bins

    def unit_times(self, n: int, seed: np.random.SeedSequence) -> Floats:
        """n sorted arrival times over a horizon of n mean gaps, every bin of it in use."""
        plan = self.resolved
        shares = self.shares(n, seed)
        if plan.counts == "exact":
            counts = _largest_remainder(shares, n)
        else:
            counts = np.random.default_rng(_child(seed, 2)).multinomial(n, shares)
        rng = np.random.default_rng(_child(seed, 1))
        inside = plan._inner_family(n, rng)
        flat = rng.random(n) < plan.b2
        inside = np.where(flat, rng.random(n), inside)
        times = np.repeat(np.arange(plan.bins), counts) + inside
        times.sort()
        return times * (n / plan.bins)

    def _mixing_weight(self, pi: Floats, n: int) -> float:
        """1 - b1: as given, or so that the dial's value comes out."""
        g = self.bins
        excess = float(np.sum(pi**2)) - 1 / g
        if self.cv_rate is not None:
            wanted, most = self.cv_rate, math.sqrt(max(g * excess, 0.0))
            weight = wanted / most if most > 1e-9 else math.inf
            dial = "cv_rate"
        elif self.idc is not None:
            dial, wanted = "idc", self.idc
            if self.counts == "exact":
                square, most = wanted / (n * excess) if excess > 1e-12 else math.inf, n * excess
            else:
                floor = 1 - 1 / g
                if wanted < floor:
                    raise ValueError(f"idc with multinomial counts is at least {floor:.3g}")
                most = floor + (n - 1) * excess
                square = (wanted - floor) / ((n - 1) * excess) if excess > 1e-12 else math.inf
            weight = math.sqrt(square)
        else:
            return 1 - self.b1
        if wanted == 0:
            return 0.0
        if weight > 1 + 1e-9:
            raise ValueError(
                f"{dial}={wanted:g} is more than outer={self.outer}, a1={self.a1:g}, "
                f"bins={g} can give ({most:.3g}); raise a1 or bins, or take outer=zipf"
            )
        return min(weight, 1.0)

    def _outer_family(self, rng: np.random.Generator) -> Floats:
        g = self.bins
        edges = np.linspace(0, 1, g + 1)
        if self.outer in ("gaussian", "inv_gaussian"):
            inverted = self.outer == "inv_gaussian"
            pi = np.diff(np.interp(edges, *_bell(self.mu1, self.a1, inverted=inverted)))
        elif self.outer == "poisson":
            pi = rng.poisson(self.a1, g).astype(np.float64)
        elif self.outer == "zipf":
            pi = rng.permutation(np.arange(1, g + 1) ** -self.a1)
        elif self.outer == "zipf_draw":
            pi = rng.zipf(self.a1, g).astype(np.float64)
        else:
            pi = np.ones(g)
        total = pi.sum()
        return pi / total if total > 0 else np.full(g, 1 / g)

    def _inner_family(self, n: int, rng: np.random.Generator) -> Floats:
        if self.inner in ("gaussian", "inv_gaussian"):
            x, cdf = _bell(self.mu2, self.a2, inverted=self.inner == "inv_gaussian")
            inside = np.interp(rng.random(n), cdf, x)
        elif self.inner == "zipf":
            # Jittered and over a fixed support, so that bursts lean to the front without ties.
            mass = np.cumsum(np.arange(1, _ZIPF_STEPS + 1) ** -self.a2)
            step = np.searchsorted(mass, rng.random(n) * mass[-1], side="right")
            inside = (np.minimum(step, _ZIPF_STEPS - 1) + rng.random(n)) / _ZIPF_STEPS
        else:
            inside = rng.random(n)
        return np.minimum(inside, np.nextafter(1.0, 0.0))


PRESETS: dict[str, LoadPlan] = {
    "low": LoadPlan(outer="inv_gaussian", a1=1.15, inner="gaussian", a2=5.0, bins=15, cv_rate=0.1),
    "medium": LoadPlan(outer="zipf", a1=1.15, inner="uniform", cv_rate=0.5),
    "high": LoadPlan(outer="zipf", a1=1.15, inner="zipf", a2=1.05, b2=0.01, cv_rate=1.5),
}


def _child(seed: np.random.SeedSequence, key: int) -> np.random.SeedSequence:
    """An independent stream; unlike ``spawn`` it is the same one each time it is asked for."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, key))


def _largest_remainder(shares: Floats, n: int) -> Counts:
    """Whole counts closest to n x shares whose sum is n exactly."""
    wanted = shares * n
    counts = np.floor(wanted).astype(np.int64)
    missing = n - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    return counts


def _bell(mu: float, sd: float, *, inverted: bool) -> tuple[Floats, Floats]:
    """Grid and cumulated share of a Gaussian cut to [0, 1], or of one minus its bell."""
    x = np.linspace(0, 1, _GRID + 1)
    exponent = -((x - mu) ** 2) / (2 * sd**2)
    # The bell's peak may lie outside [0, 1]; relative to its best value nothing underflows.
    density = -np.expm1(exponent) if inverted else np.exp(exponent - exponent.max())
    cdf = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return x, cdf / cdf[-1]
