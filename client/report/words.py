"""Numbers, intervals and names as reports write them."""

from __future__ import annotations

import math
from dataclasses import asdict

from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval
from client.load.servers.processes import NO_WAIT

_SPOKEN = {
    "nobatch": "one request at a time",
    "static": "static batching",
    NO_WAIT: "static batching without the wait",
    "dynamic": "dynamic batching",
}


def spoken(name: str) -> str:
    """A system in words."""
    mode, _, policy = name.partition(":")
    if name in _SPOKEN or mode not in _SPOKEN:
        return _SPOKEN.get(name, name)
    return f"{_SPOKEN[mode]} under {policy}"


def seconds(value: float | None) -> str:
    """A latency: three digits, ms below a second; an unsupported one says so."""
    if value is None:
        return "n too small"
    if value == math.inf:
        return "unfinished"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def number(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def factor(value: float, digits: int = 2) -> str:
    """Two digits, zeros too: 1.0, 0.93, 14."""
    return f"{value:,.0f}" if value >= 10**digits * 0.0995 else f"{value:#.{digits}g}"


def rate(requests_per_s: float) -> str:
    value = f"{requests_per_s:.3g}"
    return f"{value} request{'' if value == '1' else 's'} a second"


def times(interval: Interval) -> str:
    """A ratio within a sentence, with its interval if it has one."""
    if interval.low is None or interval.high is None:
        return f"{factor(interval.value)} times"
    # a narrow interval needs a digit more to be seen as one
    digits = 2 if factor(interval.low) != factor(interval.high) else 3
    value, low, high = (factor(v, digits) for v in (interval.value, interval.low, interval.high))
    return f"{value} times [{low}, {high}]"


def ratio_text(interval: Interval | None) -> str:
    """The same in a table."""
    if interval is None:
        return "-"
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f} (too few seeds)"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def bounded(found: Interval) -> str:
    """A latency and its interval, in one unit; where n is too small for a bound it is 0 or ∞."""
    text = seconds(found.value)
    if not math.isfinite(found.value):
        return text
    scale = 1e3 if text.endswith("ms") else 1.0
    low = 0.0 if found.low is None else found.low
    high = "∞" if found.high is None or math.isinf(found.high) else number(scale * found.high)
    return f"{text} [{number(scale * low)}, {high}]"


def objectives_text(objectives: Objectives) -> str:
    return " and ".join(
        f"{key.removesuffix('_s').upper()} ≤ {seconds(value)}"
        for key, value in asdict(objectives).items()
        if value is not None
    )


def contained(arrivals: str) -> str:
    """What intervals over seeds contain."""
    if arrivals.startswith("trace:") and "resample=true" not in arrivals:
        return "Intervals contain the machine's noise only: each seed plays the same requests."
    return "Intervals contain the workload's chance, another sample a seed, and the machine's."
