"""One verdict of three, and how far it can be trusted. Pure.

*Seen*: the 95 % interval of the ratio lies on the side that the claim names. *Not seen*: it
excludes an effect of `WORTH` in this direction. *Too close to call*: neither, or the run cannot be
trusted with what it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.analysis.comparison.bootstrap import Effect, pooled_ratio
from client.analysis.statistics import Floats, Interval

SEEN, NOT_SEEN, TOO_CLOSE = "seen", "not seen", "too close to call"
WORTH = 1.2  # the smallest factor that is worth a claim; papers claim 1.3 and more
LEAST_EVENTS = 10  # in all runs together, from which shares have a ratio that says something
REPLAYS = 1000
MOST_FALSE = 0.07  # of them may see the baseline against itself, if an effect counts as seen
_SAMPLES = 100  # of the bootstrap in each of them


@dataclass(frozen=True, slots=True)
class Block:
    """The metric's values in the runs of one seed. The baseline ran twice, before and after the
    policy, so that a steady drift of the machine cancels and its noise is known."""

    policy: Floats
    baseline: Floats
    control: Floats


@dataclass(frozen=True, slots=True)
class Finding:
    """``ratio`` is policy / baseline, ``control`` the baseline over itself. ``visible``: the
    smallest factor that this run would have seen, in 80 % of all cases."""

    verdict: str
    reason: str
    ratio: Interval | None
    control: Interval | None
    visible: float | None
    blocks: int


def find(blocks: Sequence[Block], rank: float | None, *, less: bool) -> Finding:
    effect, noise = _effects(blocks, rank)
    if effect is None or noise is None:
        reason = f"{len(blocks)} usable seeds have no ratio"
        return Finding(TOO_CLOSE, reason, None, None, None, len(blocks))
    visible = max(effect.visible, noise.visible)  # as far as the machine allows, too
    verdict, reason = _judged(effect, visible, less=less)
    return Finding(verdict, reason, effect.interval, noise.interval, math.exp(visible), len(blocks))


def false_alarms(blocks: Sequence[Block], rank: float | None, *, less: bool) -> float | None:
    """Of `REPLAYS` resampled repeats, the share in which the baseline against itself is *seen*;
    None where there is no ratio. A repeat draws seeds with replacement, and exchanges the two runs
    of the baseline at random in each."""
    if None in _effects(blocks, rank):
        return None
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(REPLAYS):
        drawn = [blocks[k] for k in rng.integers(len(blocks), size=len(blocks))]
        pairs = [
            (b.control, b.baseline) if swap else (b.baseline, b.control)
            for b, swap in zip(drawn, rng.random(len(drawn)) < 0.5, strict=True)
        ]
        again = pooled_ratio([a for a, _ in pairs], [b for _, b in pairs], rank, _SAMPLES)
        seen += again is not None and _seen(again, less=less)
    return seen / REPLAYS


def doubted(finding: Finding, alarms: float | None, events: int | None = None) -> Finding:
    """The finding, unless resampled repeats say that the effect that it has seen may be noise, or
    it is about a share of so few ``events``."""
    why = None
    if events is not None and events < LEAST_EVENTS:
        why = f"{events} such requests in all runs together are too few, {LEAST_EVENTS} are needed"
    elif finding.verdict == SEEN and alarms is not None and alarms > MOST_FALSE:
        why = (
            f"{finding.reason}, but so does that of the baseline against itself in {alarms:.1%} of "
            f"{REPLAYS:,} resampled repeats, and {MOST_FALSE:.0%} are allowed"
        )
    return finding if why is None else replace(finding, verdict=TOO_CLOSE, reason=why)


def events(blocks: Sequence[Block]) -> int:
    """Of a share, whose values are 1 for an event."""
    runs = [values for b in blocks for values in (b.policy, b.baseline, b.control)]
    return sum(int((values == 1).sum()) for values in runs)


def _effects(blocks: Sequence[Block], rank: float | None) -> tuple[Effect | None, Effect | None]:
    """Policy over baseline, and the baseline over itself."""
    both = [np.concatenate([b.baseline, b.control]) for b in blocks]
    return (
        pooled_ratio([b.policy for b in blocks], both, rank),
        pooled_ratio([b.control for b in blocks], [b.baseline for b in blocks], rank),
    )


def _seen(effect: Effect, *, less: bool) -> bool:
    return (-effect.log if less else effect.log) > effect.half


def _judged(effect: Effect, visible: float, *, less: bool) -> tuple[str, str]:
    claimed, other = ("below", "above") if less else ("above", "below")
    low, high = effect.interval.low or 0.0, effect.interval.high or math.inf
    if _seen(effect, less=less):
        return SEEN, f"the interval lies {claimed} 1"
    if (low > 1) if less else (high < 1):
        return NOT_SEEN, f"the interval lies {other} 1: the opposite"
    best = 1 / low if less else high
    if best < WORTH:
        return NOT_SEEN, f"the interval excludes every improvement of {WORTH:g} times or more"
    seeds = math.ceil(effect.blocks * (visible / math.log(WORTH)) ** 2)
    return TOO_CLOSE, (
        f"the interval contains both 1 and an effect of {WORTH:g} times; about {seeds} seeds would "
        "tell them apart"
    )
