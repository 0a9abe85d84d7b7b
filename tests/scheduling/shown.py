"""What policies are shown, as plain data: they need nothing else to be tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from engine.blocks import Ledger
from generate.modes import RectangleLedger
from scheduling.composed import Order
from seams import Observer, Plan, Policy, Request, Served, ServiceClass, View


@dataclass(frozen=True, slots=True)
class Shown:
    """A request as a policy sees it."""

    id: int
    arrival_s: float = 0.0
    prompt_tokens: int = 4
    max_tokens: int = 8
    generated: int = 0
    computed: int = 0
    cached_tokens: int | None = None
    done: bool = False
    service_class: ServiceClass = "immediate"
    deadline_s: float | None = None
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None
    priority: int = 0
    user: int = 0
    end_user: int = 0
    program: int | None = None
    predicted: int | None = None
    prefill_before: int = 0
    num_preemptions: int = 0
    group: int = 0
    room: int = 0  # of a resident, in tokens; 0: all that it may come to hold

    @property
    def known(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def predicted_tokens(self) -> int:
        return self.max_tokens if self.predicted is None else self.predicted

    @property
    def resident(self) -> bool:
        return self.computed > 0 or self.room > 0

    @property
    def most(self) -> int:
        """Tokens that it comes to hold."""
        return self.prompt_tokens + self.max_tokens


def decoding(id: int, **more: Any) -> Shown:
    """A resident of which all but the newest token is computed. It holds twelve tokens' memory."""
    return replace(Shown(id, generated=1, computed=4, room=12), **more)


def advanced(plan: Plan) -> list[tuple[int, int]]:
    return [(step.request.id, step.num_tokens) for step in plan.advance]


def view(
    waiting: Sequence[Request] = (),
    resident: Sequence[Request] = (),
    *,
    now_s: float = 100.0,
    limit: int = 4,
    max_resident: int | None = None,
    budget: int = 1000,
    used: int = 0,
    growth_tokens: int | None = None,
    rectangles: bool = False,
    hits: Mapping[int, int] | None = None,
) -> View:
    """A view whose memory has `budget` - `used` free blocks of a token each. What residents hold is
    part of `used` where their `room` says it, and comes on top of the budget where it does not.
    `hits`: tokens of prefix hits, by request."""
    memory: Ledger = RectangleLedger(budget)
    if not rectangles:
        held = {r.id: r.room or r.most for r in resident}  # type: ignore[attr-defined]
        told = sum(r.room for r in resident)  # type: ignore[attr-defined]
        untold = sum(held.values()) - told
        memory = Ledger(budget + untold, growth_tokens=growth_tokens)
        owners = [Shown(id, prompt_tokens=tokens, max_tokens=0) for id, tokens in held.items()]
        if used > told:
            owners.append(Shown(-1, prompt_tokens=used - told, max_tokens=0))
        memory.open(owners)
    deferred = sum(request.service_class == "deferred" for request in (*waiting, *resident))
    most = limit if max_resident is None else max_resident
    if hits is not None:
        memory.hit_tokens = lambda request: hits.get(request.id, 0)  # type: ignore[method-assign]
    return View(now_s, waiting, resident, limit, memory, deferred, most)


def order_of(
    order: Order,
    waiting: Sequence[Any],
    resident: Sequence[Any] = (),
    *,
    hits: Mapping[int, int] | None = None,
    **shown: Any,
) -> list[int]:
    """The ids of all that wait, in this order. `shown`: further fields of the view."""
    seen = replace(view(hits=hits), waiting=list(waiting), resident=list(resident), **shown)
    return [request.id for request in order.first(seen, len(waiting))]


def carried_out(policy: Policy, shown: View) -> Plan:
    """The plan, whose iteration the policy then observes."""
    plan = policy.plan(shown)
    rows: list[Served] = []
    for step in plan.advance:
        request: Any = step.request
        end = request.computed + step.num_tokens
        rows.append(Served(replace(request, computed=end), step.num_tokens, end == request.known))
    if rows and isinstance(policy, Observer):
        policy.observe(rows)
    return plan


def signals() -> st.SearchStrategy[dict[str, Any]]:
    """What clients tell policies; few users and programs, so that requests share them."""
    return st.fixed_dictionaries(
        {
            "user": st.integers(0, 3),
            "end_user": st.integers(0, 2),
            "program": st.one_of(st.none(), st.integers(1, 3)),
            "priority": st.integers(-1, 3),
            "ttft_target_s": st.one_of(st.none(), st.floats(0.001, 1.0)),
            "tpot_target_s": st.one_of(st.none(), st.floats(0.001, 0.1)),
            "predicted": st.one_of(st.none(), st.integers(1, 40)),
        }
    )


NO_SIGNALS = st.just(dict[str, Any]())


@st.composite
def queues(
    draw: st.DrawFn, most: int = 12, told: st.SearchStrategy[dict[str, Any]] = NO_SIGNALS
) -> list[Shown]:
    """Waiting requests in order of arrival. `told`: the signals of each."""
    arrivals_s = sorted(draw(st.lists(st.integers(0, 100), max_size=most)))
    return [
        Shown(
            id,
            float(at_s),
            draw(st.integers(1, 30)),
            draw(st.integers(1, 30)),
            **draw(told),
        )
        for id, at_s in enumerate(arrivals_s)
    ]


@st.composite
def batches(
    draw: st.DrawFn,
    least: int = 1,
    most: int = 6,
    told: st.SearchStrategy[dict[str, Any]] = NO_SIGNALS,
) -> list[Shown]:
    """Residents after an iteration: all but the newest token of each is computed."""
    generated = draw(st.lists(st.integers(1, 8), min_size=least, max_size=most))
    return [
        Shown(1000 + n, generated=g, computed=4 + g - 1, done=g == 8, **draw(told))
        for n, g in enumerate(generated)
    ]
