"""Optimistic admission: a request holds room for what it has and a little more, and grows.

A plan is made before anybody grows, so it may need more memory than there is. Then residents give
up their places until it fits: deferred ones first, and of a class those with the fewest computed
tokens, since least is to be computed again, but never the oldest, immediate ones counting as older.
The oldest therefore always goes on, ends, and leaves the place of the oldest to another: nobody is
preempted for ever, under any policy, unless immediate requests never cease.

Preemption by recomputation: Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", SOSP '23, section 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seams import Advance, Plan, Request, View


@dataclass(frozen=True, slots=True)
class Growth:
    """What a plan became, and what is to be done before it is executed."""

    advance: Sequence[Advance]
    preempt: Sequence[Request]
    room: Mapping[int, int]  # resident -> tokens it is to have room for; those who grow only


def with_growth(plan: Plan, view: View, growth_tokens: int) -> Growth:
    """Whoever does not suffice with its room gets `growth_tokens` more, or what it may still need
    where that is less."""
    stays = {r.id: r for r in view.resident if r not in plan.preempt}
    grown = {
        step.request.id: _room(step, growth_tokens)
        for step in plan.advance
        if step.request.id in stays and step.request.computed + step.tokens > step.request.room
    }
    if not grown:
        return Growth(plan.advance, plan.preempt, grown)
    preempt = list(plan.preempt)
    free = view.memory.budget - view.memory.used + sum(request.room for request in preempt)
    free -= sum(grown[id] - stays[id].room for id in grown)
    oldest = min(stays.values(), key=lambda r: (r.service_class == "deferred", r.id)).id
    for victim in sorted(stays.values(), key=_dearness):
        if free >= 0:
            break
        if victim.id != oldest:
            free += grown.pop(victim.id, victim.room)
            preempt.append(victim)
    gone = {request.id for request in preempt}
    advance = [step for step in plan.advance if step.request.id not in gone]
    shortage = len(preempt) > len(plan.preempt)
    return Growth(_admissible(advance, view, -1 if shortage else free), preempt, grown)


def _dearness(request: Request) -> tuple[bool, int, int]:
    return request.service_class == "immediate", request.computed, -request.id


def _room(step: Advance, growth_tokens: int) -> int:
    request = step.request
    most = request.known + request.max_tokens - request.generated
    return min(most, max(request.room + growth_tokens, request.computed + step.tokens))


def _admissible(advance: Sequence[Advance], view: View, free: int) -> list[Advance]:
    """Without the newcomers that no longer fit; where others had to leave, nobody overtakes them
    in the same iteration."""
    resident = {request.id for request in view.resident}
    kept = [step for step in advance if step.request.id in resident]
    for step in advance:
        if step.request.id not in resident:
            free -= view.memory.cost([step.request.need])
            if free < 0:
                break
            kept.append(step)
    return kept
