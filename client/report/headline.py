"""The headline in words: limits side by side, latencies where both sustain, capacity, the control.

Turns the record into lines; computes nothing.
"""

from __future__ import annotations

from client.analysis.results import Bracket, Headline, Pair
from client.report.tables import ratio_text

_LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))


def headline_lines(found: Headline) -> list[str]:
    """One fact a line, with the interval over seeds."""
    lines = [
        f"At saturation {a.contestant} gives {a.throughput.value:.0f} output tokens/s."
        for a in found.saturation
    ]
    lines += [
        f"Output tokens/s of {p.of} over {p.over}, both saturated, load {p.load:g}: "
        f"{ratio_text(p.throughput)}."
        for p in found.pairs
        if p.throughput is not None
    ]
    lines += [f"{p.of} over {p.over}, load {p.load:g}: {_latencies(p)}."
              for p in found.pairs if _latencies(p)]  # fmt: skip
    lines += [_capacity(b, found.share) for b in found.capacities]
    for p in found.controls:
        what = ratio_text(p.throughput) if p.throughput is not None else _latencies(p)
        lines.append(f"Control, {p.of} over itself at load {p.load:g}: {what}.")
    return lines


def _latencies(pair: Pair) -> str:
    ratios = [(name, getattr(pair, key)) for key, name in _LATENCIES]
    return ", ".join(f"median {name} {ratio_text(r)}" for name, r in ratios if r is not None)


def _capacity(b: Bracket, share: float) -> str:
    """The bracket in loads; open where the comparison did not reach an end of it."""
    met = f"Capacity of {b.contestant} (objectives met by {share:.0%}):"
    if b.passed is None and b.failed is None:
        return f"{met} not known."
    if b.passed is None:
        return f"{met} below load {b.failed:g}."
    return f"{met} load {b.passed:g} " + ("or more." if b.failed is None else f"to {b.failed:g}.")
