"""Optimistic admission: a request holds memory for its tokens and a few more, and grows.

A policy plans before requests grow, so its plan may need more blocks than there are. Then residents
are preempted until it fits: deferred ones first, and within a class those that the plan does not
advance, then those with the fewest computed tokens, since least is computed again, but never the
oldest, where immediate requests count as older. So the oldest request always continues, ends, and
makes another one the oldest: growth preempts no request for ever, unless immediate requests never
cease.

Preemption by recomputation: Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", SOSP '23, section 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from seams import Advance, Plan, Request, View


def with_growth(plan: Plan, view: View) -> Plan:
    """The plan, with as many further preemptions as its residents need to grow. Newcomers that no
    longer fit wait on; where a resident had to leave, none is admitted in the same iteration."""
    growing, trial = [], view.memory.trial(plan.preempt)
    residents = [step for step in plan.advance if step.request.resident]
    for step in residents:
        if cost := trial.cost(step):
            growing.append(step)
            trial.charge(step, cost)
    if not growing:
        return plan
    if trial.free >= 0:
        newcomers = [step for step in plan.advance if not step.request.resident]
        return replace(plan, advance=[*residents, *takewhile(trial.take, newcomers)])

    def order(request: Request) -> tuple[bool, bool, int, int]:
        immediate = request.service_class == "immediate"
        return immediate, request.id in advanced, request.computed, -request.id

    advanced, gone = {s.request.id for s in plan.advance}, {r.id for r in plan.preempt}
    stays = [request for request in view.resident if request.id not in gone]
    oldest = min(stays, key=lambda r: (r.service_class == "deferred", r.id)).id
    preempt = list(plan.preempt)
    victims = (request for request in sorted(stays, key=order) if request.id != oldest)
    while not _fit(growing, preempt, view) and (victim := next(victims, None)) is not None:
        preempt.append(victim)
        growing = [step for step in growing if step.request.id != victim.id]
    gone = {request.id for request in preempt}
    advance = [step for step in residents if step.request.id not in gone]
    return replace(plan, advance=advance, preempt=preempt)


def _fit(growing: Sequence[Advance], preempt: Sequence[Request], view: View) -> bool:
    trial = view.memory.trial(preempt)
    return all(trial.take(step) for step in growing)
