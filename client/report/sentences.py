"""The result of a comparison in sentences with numbers. Turns records into words; computes
nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client.analysis.comparison.results import Bracket, Headline
from client.analysis.comparison.summary import TAIL, Point, names_of
from client.analysis.gates import VALID
from client.load.servers.processes import NO_WAIT
from client.report.words import number, objectives_text, rate, seconds, spoken, times


def sentences(found: Headline, points: Sequence[Point], waits_s: Mapping[str, float]) -> list[str]:
    """Throughput at the limit, latency where both keep up, capacity: of dynamic against the
    reference, or of the last system if dynamic is the reference. ``waits_s``: how long a static
    system's batch waits for others to join."""
    names = names_of(points)
    system = "dynamic" if "dynamic" in names[1:] else names[-1]
    return [
        _limit(found, system, names),
        _latency(found, system, points, waits_s),
        _capacity(found, system, names),
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
        f"{times(ratios[name])} those of {spoken(name)} (load {limits[name].load:g})"
        for name in names
        if name in ratios
    ]
    if not others:
        return f"{sentence}."
    return f"{sentence}, {' and '.join(others)}. Each counts at the load where it delivered most."


def _latency(
    found: Headline, system: str, points: Sequence[Point], waits_s: Mapping[str, float]
) -> str:
    """At the highest load with which it and another system keep up."""
    names = names_of(points)
    pairs = [p for p in found.pairs if p.of == system and p.ratios["ttft"] is not None]
    if not pairs:
        return f"No other system kept up with {spoken(system)}, so no latencies are compared."
    pair = max(pairs, key=lambda p: (p.load, -names.index(p.over)))
    here = {q.system: q for q in points if q.load == pair.load}
    mine, theirs = here[system], here[pair.over]
    ratio = pair.ratios["ttft"]
    assert ratio is not None  # as chosen above
    sentence = f"{times(ratio)} as long"
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
    if (tail := pair.ratios.get(f"ttft_p{TAIL}")) is not None:
        text += f" The p{TAIL} was {times(tail)} as long."
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


def _capacity(found: Headline, system: str, names: Sequence[str]) -> str:
    brackets = {b.system: b for b in found.capacities}
    order = (system, *(name for name in names if name != system))
    told = "; ".join(_bracket(brackets[name]) for name in order if name in brackets)
    return (
        f"With {objectives_text(found.objectives)} for {found.share:.0%} of the requests, {told}."
    )


def _bracket(b: Bracket) -> str:
    who = spoken(b.system)
    if b.passed is None:
        if b.failed is None:
            return f"the capacity of {who} is unknown"
        return f"{who} did not sustain even load {b.failed:g}"
    if b.failed is None:
        return f"{who} sustained load {b.passed:g}, the highest that it ran"
    return f"{who} sustained load {b.passed:g} but not {b.failed:g}, the next one tried"
