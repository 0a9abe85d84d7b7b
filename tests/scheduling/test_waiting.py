"""The index of waiting requests: the same order as sorting, at the cost of what changed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.inference import Inference
from requested import Sampling
from scheduling.policies.orders.vtc import VTC
from scheduling.registry import POLICIES, make_policy
from seams import Memory, Observer, Served
from serving.config import Config
from tests.scheduling.shown import view

MANY = 10_000
CHANGED = 8
SORTED = {"hrrn", "deadline", "shortest-first"}  # their order changes with time


class Counted(list[Any]):
    """Waiting requests, and how many were looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looks += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        self.looks += len(self)
        return super().__iter__()


def arriving(rng: random.Random, id: int) -> Inference:
    inference = Inference([1] * rng.randint(1, 30), rng.randint(1, 30), Sampling(), float(id))
    inference.id = id
    inference.user, inference.end_user = rng.randint(1, 50), rng.randint(0, 3)
    inference.program = rng.choice([None, rng.randint(1, 50)])
    inference.priority = rng.randint(0, 5)
    return inference


@pytest.mark.parametrize("name", POLICIES)
def test_a_plan_looks_at_the_requests_that_changed_not_at_all_that_wait(name: str) -> None:
    rng = random.Random(1)
    policy: Any = make_policy(name, Config(mode="dynamic", policy=name))
    waiting: list[Any] = [arriving(rng, id) for id in range(MANY)]
    limit = CHANGED
    looks = []
    for turn in range(4):
        counted = Counted(waiting)
        shown = replace(view(limit=limit, max_resident=4 * limit, budget=10_000), waiting=counted)
        plan = policy.plan(shown)
        looks.append(counted.looks)
        chosen = [step.request for step in plan.advance]
        assert chosen
        for request in chosen:  # they run at once, and end
            request.finish("length")
        if isinstance(policy, Observer):
            policy.observe([Served(request, request.known, 1) for request in chosen])
        waiting = [request for request in waiting if not request.done]
        waiting += [arriving(rng, MANY + CHANGED * turn + i) for i in range(CHANGED)]
    most = 8 * (CHANGED + 64) * math.log2(MANY)  # dlpm compares 64 prefixes
    assert max(looks[1:]) <= (2 * MANY if name in SORTED else most)


@pytest.mark.parametrize("seed", range(20))
def test_users_are_in_the_order_of_their_counters_whatever_comes_and_goes(seed: int) -> None:
    """Against an order that is computed from all waiting requests at every plan."""
    rng = random.Random(seed)
    order = VTC()
    waiting: list[Inference] = []
    resident: list[Inference] = []
    ids = iter(range(10_000))
    for _ in range(60):
        waiting += [arriving(rng, next(ids)) for _ in range(rng.randint(0, 4))]
        shown: Any = view(limit=8)
        shown = replace(shown, waiting=list(waiting), resident=list(resident))
        most = rng.randint(0, 4)
        found: list[Any] = list(order.first(shown, most))
        assert [r.id for r in found] == [r.id for r in by_hand(order, waiting, shown.memory, most)]
        for request in found:
            if rng.random() < 0.7:
                request.resident = True
                waiting.remove(request)
                resident.append(request)
        order.observe([Served(r, 1, 1) for r in resident if rng.random() < 0.5])
        for request in list(resident):
            if rng.random() < 0.5:
                resident.remove(request)
                request.resident = False
                if rng.random() < 0.5:
                    request.finish("length")
                else:
                    request.num_preemptions += 1
                    waiting.append(request)
        for request in rng.sample(waiting, len(waiting) // 8):
            request.finish("cancelled")
        waiting = [request for request in waiting if not request.done]
        waiting.sort(key=lambda r: (not r.num_preemptions, r.id))


def by_hand(order: VTC, waiting: Sequence[Inference], memory: Memory, most: int) -> list[Inference]:
    served = {request.user: order.served.get(request.user, 0.0) for request in waiting}
    turns = {request.id: order.waiting._entries[request.id][0] for request in waiting}
    since = {request.user: order.waiting._queues[request.user].since for request in waiting}

    def place(request: Inference) -> tuple[float, int]:
        return turns[request.id], request.id

    left, found = list(waiting), list[Inference]()
    while left and len(found) < most:
        # within a user by turn, then by arrival; then by who has waited longer
        users = {request.user for request in left}
        firsts = [min((r for r in left if r.user == user), key=place) for user in users]
        best = min(firsts, key=lambda r: (served[r.user], since[r.user]))
        left.remove(best)
        found.append(best)
        served[best.user] += best.known
    return found


def test_cancelled_requests_are_forgotten_also_while_others_come_before_them() -> None:
    policy: Any = make_policy("priority", Config(mode="dynamic", policy="priority"))
    urgent: list[Any] = [arriving(random.Random(1), id) for id in range(3)]
    for request in urgent:
        request.priority = -1
    for id in range(3, 1000):
        cancelled = arriving(random.Random(1), id)
        policy.order.first(replace(view(), waiting=[*urgent, cancelled]), 1)
        cancelled.finish("cancelled")
    policy.order.first(replace(view(), waiting=urgent), 1)
    assert len(policy.order.waiting._entries) < 100
