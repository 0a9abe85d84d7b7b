"""Choices of one prompt compute it once: while one of them does, the others wait until they find
its blocks, and so do the newcomers behind them, which would otherwise overtake.

Nothing is remembered from plan to plan. A choice waits only in an iteration in which another one
computes what it needs, so if that one pauses, is preempted or ends, the next plan admits another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from engine.blocks import Ledger
from engine.inference import Inference
from seams import Plan


def without_siblings(plan: Plan, resident: Iterable[Inference], ledger: Ledger) -> Plan:
    """The plan without the newcomers that wait. Where residents are preempted for newcomers, all of
    them come."""
    newcomers = [cast(Inference, s.request) for s in plan.advance if not s.request.resident]
    groups = {inference.group for inference in newcomers if ledger.shares(inference)} - {0}
    if not groups or plan.preempt:
        return plan
    advanced = {step.request.id for step in plan.advance}
    computing = [
        (one.group, ledger.shareable(one))
        for one in resident
        if one.group in groups and not one.ended and (one.num_in_flight or one.id in advanced)
    ]
    for place, inference in enumerate(newcomers):
        wanted = min(inference.hit_limit, inference.prompt_tokens) // ledger.block_tokens
        if inference.group not in groups or len(ledger.hits(inference)) >= wanted:
            continue
        if any(group == inference.group and blocks < wanted for group, blocks in computing):
            late = {newcomer.id for newcomer in newcomers[place:]}
            return replace(plan, advance=[s for s in plan.advance if s.request.id not in late])
        computing.append((inference.group, 0))
    return plan
