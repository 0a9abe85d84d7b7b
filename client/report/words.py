"""The result in sentences with numbers. Turns records into words; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from client.analysis.gates import VALID
from client.analysis.metrics import Objectives
from client.analysis.results import Bracket, Headline, Pair
from client.analysis.statistics import Interval
from client.analysis.summary import Point
from client.report.page import seconds

_SPOKEN = {
    "nobatch": "one request at a time",
    "static": "static batching",
    "dynamic": "dynamic batching",
}


def spoken(name: str) -> str:
    """A contestant in words."""
    mode, _, policy = name.partition(":")
    return f"{_SPOKEN[mode]} under {policy}" if policy and mode in _SPOKEN else _SPOKEN.get(
        name, name
    )  # fmt: skip


def number(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sentences(found: Headline, points: Sequence[Point]) -> list[str]:
    """Throughput at the limit, latency where both keep up, capacity: of dynamic against the
    reference, or of the last contestant if dynamic is the reference."""
    names = list(dict.fromkeys(p.contestant for p in points))
    hero = "dynamic" if "dynamic" in names[1:] else names[-1]
    return [
        _limit(found, hero, names),
        _latency(found, hero, names, points),
        _capacity(found, hero, names),
    ]


def _limit(found: Headline, hero: str, names: Sequence[str]) -> str:
    limits = {a.contestant: a for a in found.saturation}
    pairs = {p.over: p for p in found.pairs if p.of == hero and p.throughput is not None}
    told = [_times(pairs[name]) for name in names if name in pairs]
    if hero in limits and told:
        mine = limits[hero]
        return (
            f"At its limit, {spoken(hero)} delivered {number(mine.throughput.value)} output tokens "
            f"a second, {' and '.join(told)}."
        )
    if hero in limits:
        limit = number(limits[hero].throughput.value)
        return f"At its limit, {spoken(hero)} delivered {limit} output tokens a second."
    return (
        f"No load brought {spoken(hero)} to its limit, so its throughput there is unknown; "
        "use higher --loads."
    )


def rate(requests_per_s: float) -> str:
    value = f"{requests_per_s:.3g}"
    return f"{value} request{'' if value == '1' else 's'} a second"


def _times(pair: Pair) -> str:
    ratio = pair.throughput
    assert ratio is not None  # the caller passes only such pairs
    return f"{ratio.value:.2g} times{_within(ratio)} those of {spoken(pair.over)}"


def _latency(found: Headline, hero: str, names: Sequence[str], points: Sequence[Point]) -> str:
    """At the highest load with which it and another contestant keep up."""
    pairs = [p for p in found.pairs if p.of == hero and p.ttft is not None]
    if not pairs:
        return _alone(hero, points)
    pair = max(pairs, key=lambda p: (p.load, -names.index(p.over)))
    mine, theirs = (
        next((q for q in points if (q.contestant, q.load) == (name, pair.load)), None)
        for name in (hero, pair.over)
    )
    ratio = pair.ttft
    assert mine is not None
    assert theirs is not None
    assert ratio is not None  # they make the pair
    told = f"{ratio.value:.2g} times{_within(ratio)} the wait"
    if ratio.low is None or ratio.high is None:
        told += " (one seed, so no interval)"
    else:
        told += ", paired over seeds"
        if ratio.low <= 1 <= ratio.high:
            told += ", so no difference is certain"
    return (
        f"At {rate(mine.offered)} (load {pair.load:g}), at which both keep up, half "
        f"of the requests got their first token within {seconds(mine.latency('ttft', 50))} with "
        f"{spoken(hero)} and within {seconds(theirs.latency('ttft', 50))} with "
        f"{spoken(pair.over)}: {told}."
    )


def _alone(hero: str, points: Sequence[Point]) -> str:
    """If no other keeps up: its own latency at the highest load with which it does."""
    calm = [p for p in points if p.contestant == hero and p.verdict == VALID]
    if not calm:
        return f"{spoken(hero)} kept up at none of the loads, so its latencies have no meaning."
    p = max(calm, key=lambda p: p.load)
    return (
        f"At {rate(p.offered)} (load {p.load:g}), with which {spoken(hero)} keeps up, "
        f"the median time to the first token was {seconds(p.latency('ttft', 50))} and that to the "
        f"whole response {seconds(p.latency('e2e', 50))}."
    )


def _capacity(found: Headline, hero: str, names: Sequence[str]) -> str:
    brackets = {b.contestant: b for b in found.capacities}
    told = [
        _bracket(brackets[n]) for n in (hero, *(x for x in names if x != hero)) if n in brackets
    ]
    goal = f"{objectives_text(found.objectives)} for {found.share:.0%} of the requests"
    return f"With {goal}, {'; '.join(told)}."


def _bracket(b: Bracket) -> str:
    who = spoken(b.contestant)
    if b.passed is None:
        if b.failed is None:
            return f"the capacity of {who} is unknown"
        return f"{who} did not sustain even load {b.failed:g}"
    end = ", the highest" if b.failed is None else f" but not {b.failed:g}"
    return f"{who} sustained load {b.passed:g}{end}"


def objectives_text(objectives: Objectives) -> str:
    parts = (
        ("TTFT", objectives.ttft_s), ("TPOT", objectives.tpot_s), ("E2E", objectives.e2e_s)
    )  # fmt: skip
    return " and ".join(f"{name} ≤ {seconds(value)}" for name, value in parts if value is not None)


def _within(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f" [{interval.low:.2g}, {interval.high:.2g}]"
