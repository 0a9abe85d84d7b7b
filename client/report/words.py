"""The result in sentences with numbers. Turns records into words; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from client.analysis.comparison.results import Bracket, Headline
from client.analysis.comparison.summary import TAIL, Point, names_of
from client.analysis.gates import VALID
from client.analysis.metrics import Objectives
from client.analysis.statistics import Interval
from client.load.servers.system import NO_WAIT
from client.report.html.page import seconds

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


def number(value: float) -> str:
    """Three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def factor(value: float) -> str:
    """Two digits, zeros too: 1.0, 0.93, 14."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:#.2g}"


def sentences(found: Headline, points: Sequence[Point], waits_s: Mapping[str, float]) -> list[str]:
    """Throughput at the limit, latency where both keep up, capacity: of dynamic against the
    reference, or of the last system if dynamic is the reference. ``waits_s``: how long a static
    system's batch waits for others to join."""
    names = names_of(points)
    system = "dynamic" if "dynamic" in names[1:] else names[-1]
    return [
        _limit(found, system, names),
        _latency(found, system, names, points, waits_s),
        _capacity(found, system, names, waits_s),
    ]


def _limit(found: Headline, system: str, names: Sequence[str]) -> str:
    limits = {x.system: x for x in found.limits}
    if system not in limits:
        return (
            f"The throughput of {spoken(system)} at its limit is unknown: no load brought it "
            "there, or its figures are void."
        )
    mine = limits[system]
    sentence = (
        f"At its limit (load {mine.load:g}), {spoken(system)} delivered "
        f"{number(mine.throughput.value)} output tokens a second"
    )
    ratios = {r.over: r.throughput for r in found.limit_ratios if r.of == system}
    others = [
        f"{factor(ratios[name].value)} times{_within(ratios[name])} those of {spoken(name)} "
        f"(load {limits[name].load:g})"
        for name in names
        if name in ratios
    ]
    if not others:
        return f"{sentence}."
    return f"{sentence}, {' and '.join(others)}. Each counts at the load where it delivered most."


def contained(arrivals: str) -> str:
    """What intervals over seeds contain."""
    if not arrivals.startswith("trace:"):
        return "Intervals contain the workload's chance, another sample a seed, and the machine's."
    if "resample=true" in arrivals:
        return (
            "Intervals contain which parts of the trace are played, others for each seed, and the "
            "machine's noise."
        )
    return "Intervals contain the machine's noise only: each seed plays the same requests."


def rate(requests_per_s: float) -> str:
    value = f"{requests_per_s:.3g}"
    return f"{value} request{'' if value == '1' else 's'} a second"


def _latency(
    found: Headline,
    system: str,
    names: Sequence[str],
    points: Sequence[Point],
    waits_s: Mapping[str, float],
) -> str:
    """At the highest load with which it and another system keep up."""
    pairs = [p for p in found.pairs if p.of == system and p.ratios["ttft"] is not None]
    if not pairs:
        return _alone(system, points)
    pair = max(pairs, key=lambda p: (p.load, -names.index(p.over)))
    here = {q.system: q for q in points if q.load == pair.load}
    mine, theirs = here[system], here[pair.over]
    ratio = pair.ratios["ttft"]
    assert ratio is not None  # as chosen above
    sentence = f"{factor(ratio.value)} times{_within(ratio)} as long"
    if ratio.low is None or ratio.high is None:
        sentence += " (too few seeds for an interval)"
    else:
        sentence += ", paired over seeds"
        if ratio.low <= 1 <= ratio.high:
            sentence += ", so no difference is certain"
    text = (
        f"At {rate(mine.offered)} (load {pair.load:g}), at which both keep up, half "
        f"of the requests got their first token within {_median(mine)} with "
        f"{spoken(system)} and within {_median(theirs)} with {spoken(pair.over)}: {sentence}."
    )
    if (tail := pair.tails.get(f"ttft_p{TAIL}")) is not None:
        text += f" The p{TAIL} was {factor(tail.value)} times{_within(tail)} as long."
    if wait_s := waits_s.get(pair.over):
        text += (
            f" The time of {spoken(pair.over)} contains a wait of up to {seconds(wait_s)} for "
            "others to join the batch (--max-wait-ms)"
        )
        without = here.get(NO_WAIT)
        if without is not None and without.verdict == VALID:
            text += f"; without this wait it was {_median(without)}"
        text += "."
    return text


def _median(p: Point) -> str:
    return f"{seconds(p.latency('ttft', 50))} ({p.latencies['ttft'].size} requests)"


def _alone(system: str, points: Sequence[Point]) -> str:
    """If no other keeps up: its own latency at the highest load with which it does."""
    sustained = [p for p in points if p.system == system and p.verdict == VALID]
    if not sustained:
        return f"{spoken(system)} kept up at none of the loads, so its latencies have no meaning."
    p = max(sustained, key=lambda p: p.load)
    return (
        f"At {rate(p.offered)} (load {p.load:g}), with which {spoken(system)} keeps up, "
        f"the median time to the first token was {seconds(p.latency('ttft', 50))} and that to the "
        f"whole response {seconds(p.latency('e2e', 50))}."
    )


def _capacity(
    found: Headline, system: str, names: Sequence[str], waits_s: Mapping[str, float]
) -> str:
    brackets = {b.system: b for b in found.capacities}
    order = (system, *(name for name in names if name != system))
    found_text = "; ".join(_bracket(brackets[name]) for name in order if name in brackets)
    goal = f"{objectives_text(found.objectives)} for {found.share:.0%} of the requests"
    text = f"With {goal}, {found_text}."
    late = [n for n, wait_s in waits_s.items() if wait_s >= (found.objectives.ttft_s or math.inf)]
    if late:
        text += (
            f" A request that opens a batch with {' and '.join(map(spoken, late))} cannot meet "
            f"this TTFT, since it waits {seconds(waits_s[late[0]])} unless the batch fills up."
        )
    return text


def _bracket(b: Bracket) -> str:
    who = spoken(b.system)
    if b.passed is None:
        if b.failed is None:
            return f"the capacity of {who} is unknown"
        return f"{who} did not sustain even load {b.failed:g}"
    end = (
        ", the highest that it ran"
        if b.failed is None
        else f" but not {b.failed:g}, the next one tried"
    )
    return f"{who} sustained load {b.passed:g}{end}"


def objectives_text(objectives: Objectives) -> str:
    return " and ".join(
        f"{key.removesuffix('_s').upper()} ≤ {seconds(value)}"
        for key, value in asdict(objectives).items()
        if value is not None
    )


def _within(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f" [{factor(interval.low)}, {factor(interval.high)}]"
