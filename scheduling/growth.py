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

from collections.abc import Container, Sequence
from dataclasses import replace

from seams import Advance, Plan, Request, Trial, View


def with_growth(plan: Plan, view: View) -> Plan:
    """The plan, with as many further preemptions as its residents need to grow. Newcomers that no
    longer fit wait on; where a resident had to leave, none is admitted in the same iteration."""
    growing, trial = [], view.memory.trial(plan.preempt)
    for step in plan.advance:
        if step.request.resident and (cost := trial.cost(step)):
            growing.append(step)
            trial.charge(step, cost)
    if not growing:
        return plan
    if trial.free >= 0:
        return replace(plan, advance=_admissible(plan.advance, trial))
    gone = {request.id for request in plan.preempt}
    stays = [request for request in view.resident if request.id not in gone]
    oldest = min(stays, key=lambda r: (r.service_class == "deferred", r.id)).id
    preempt = list(plan.preempt)
    runs = {step.request.id for step in plan.advance}
    victims = (r for r in sorted(stays, key=lambda r: _preemption_order(r, runs)) if r.id != oldest)
    while _missing(growing, preempt, view) and (victim := next(victims, None)) is not None:
        preempt.append(victim)
        growing = [step for step in growing if step.request.id != victim.id]
    gone = {request.id for request in preempt}
    advance = [s for s in plan.advance if s.request.resident and s.request.id not in gone]
    return replace(plan, advance=advance, preempt=preempt)


def _missing(growing: Sequence[Advance], preempt: Sequence[Request], view: View) -> bool:
    trial = view.memory.trial(preempt)
    return not all(trial.take(step) for step in growing)


def _preemption_order(request: Request, runs: Container[int]) -> tuple[bool, bool, int, int]:
    """Deferred requests first, then those that pause, then those with the fewest tokens to compute
    again."""
    immediate = request.service_class == "immediate"
    return immediate, request.id in runs, request.computed, -request.id


def _admissible(advance: Sequence[Advance], trial: Trial) -> list[Advance]:
    """Residents, and the first newcomers that fit beside them."""
    kept = [step for step in advance if step.request.resident]
    for step in advance:
        if not step.request.resident:
            if not trial.take(step):
                break
            kept.append(step)
    return kept
