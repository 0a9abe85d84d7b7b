"""The result of a comparison in sentences with numbers, as `sentences.txt.j2` words them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from client.analysis.comparison.results import Headline
from client.analysis.comparison.summary import TAIL, Point, names_of
from client.analysis.gates import VALID
from client.load.servers.processes import NO_WAIT
from client.report.tables import rendered
from client.report.words import number, objectives_text, rate, seconds, spoken, times


def sentences(found: Headline, points: Sequence[Point], waits_s: Mapping[str, float]) -> list[str]:
    """Throughput at the limit, latency at the highest load with which it and another system keep
    up, capacity: of dynamic against the reference, or of the last system if dynamic is the
    reference. ``waits_s``: how long a static system's batch waits for others to join."""
    names = names_of(points)
    system = "dynamic" if "dynamic" in names[1:] else names[-1]
    limits = {x.system: x for x in found.limits}
    ratios = {r.over: r.throughput for r in found.limit_ratios if r.of == system}
    pairs = [p for p in found.pairs if p.of == system and p.ratios["ttft"] is not None]
    pair = max(pairs, key=lambda p: (p.load, -names.index(p.over)), default=None)
    here = {q.system: q for q in points if pair is not None and q.load == pair.load}
    without = here.get(NO_WAIT)
    brackets = {b.system: b for b in found.capacities}
    order = (system, *(name for name in names if name != system))
    return rendered(
        "sentences.txt.j2",
        found=found, system=system, rank=TAIL,
        limit=limits.get(system),
        others=[(limits[o], ratios[o]) for o in names if o in ratios and o in limits],
        pair=pair,
        mine=here.get(system),
        theirs=pair and here.get(pair.over),
        tail=pair and pair.ratios.get(f"ttft_p{TAIL}"),
        wait_s=pair and waits_s.get(pair.over),
        without=without if without is not None and without.verdict == VALID else None,
        brackets=[brackets[name] for name in order if name in brackets],
        objectives=objectives_text(found.objectives),
        number=number, rate=rate, seconds=seconds, spoken=spoken, times=times,
    ).splitlines()  # fmt: skip
