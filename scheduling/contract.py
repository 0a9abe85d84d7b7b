"""The contract of policies. Every plan is checked, which takes some 10 us with 64
residents. A wrong one fails with a sentence that says what is wrong, before it changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from seams import Plan, Request, View


class PolicyError(Exception):
    """A policy broke its contract."""


class PolicyOptionError(ValueError):
    """The policy that is asked for does not exist, or not with these options."""


def check_plan(plan: Plan, view: View, most_rows: int | None = None) -> None:
    """Raises PolicyError where `plan` is not one that `seams.Plan` describes for this view.
    `most_rows`: that residents alone may have, since the batch limit of the view may have
    fallen below their number; None: no more than this limit."""
    if not isinstance(plan, Plan):
        raise PolicyError(f"the policy returned {type(plan).__name__}, not a seams.Plan")
    if not plan.advance:
        wake_s = plan.wake_s
        if wake_s is None:
            raise PolicyError("the policy planned nothing and set no wake_s")
        if not (isinstance(wake_s, int | float) and wake_s > view.now_s):
            raise PolicyError(
                f"the policy planned nothing with wake_s {wake_s!r}; allowed: a time after "
                f"view.now_s, which is {view.now_s}"
            )
    rows = len(plan.advance) + len(plan.hold)
    resident = {request.id for request in view.resident}
    preempted = {request.id for request in plan.preempt}
    advanced = {step.request.id for step in plan.advance}
    if len(advanced) < len(plan.advance):
        raise PolicyError("the policy advances a request twice in one iteration")
    if len(preempted) < len(plan.preempt):
        raise PolicyError("the policy preempts a request twice in one iteration")
    if not preempted <= resident:
        raise PolicyError(f"the policy preempts {preempted - resident}, which are not resident")
    if preempted & advanced:
        raise PolicyError(f"the policy preempts and advances {preempted & advanced} at once")
    if new := advanced - resident:
        if not new <= (waiting := {request.id for request in view.waiting}):
            raise PolicyError(f"the policy advances {new - waiting}, neither waiting nor resident")
        if len(resident) - len(preempted) + len(new) > view.max_resident:
            raise PolicyError(
                f"the policy admits {len(new)} requests beside {len(resident) - len(preempted)}; "
                f"{view.max_resident} may be resident (--max-resident)"
            )
        _check_memory([step.request for step in plan.advance if step.request.id in new], plan, view)
    limit = view.max_batch_size if new or most_rows is None else most_rows
    if rows > limit:
        raise PolicyError(f"the policy plans {rows} rows; the batch limit is {limit}")
    for request, tokens in plan.advance:
        whole = type(tokens) is int or hasattr(tokens, "__index__")
        if not (whole and 0 < tokens <= request.known - request.computed):
            raise PolicyError(
                f"the policy advances request {request.id} by {tokens} tokens; it has "
                f"{request.computed} of {request.known} computed"
                + (", and is done, so retire has to return it" if request.done else "")
            )
    if plan.hold:
        _check_held(plan, resident, preempted | advanced)


def _check_memory(new: Sequence[Request], plan: Plan, view: View) -> None:
    if (fit := view.memory.fit(new, plan.preempt)) < len(new):
        available = view.memory.num_blocks - view.memory.used + view.memory.freed(plan.preempt)
        raise PolicyError(
            f"the policy admits {len(new)} requests; the {available} blocks of KV memory that are "
            f"available hold {fit} of them (ask memory.fit)"
        )


def _check_held(plan: Plan, resident: set[int], planned: set[int]) -> None:
    held = {request.id for request in plan.hold}
    if not held <= resident - planned:
        raise PolicyError(
            f"the policy holds {sorted(held - (resident - planned))}, which are not resident or "
            "have another part in the plan"
        )
    for request in plan.hold:
        if not request.done:
            raise PolicyError(f"the policy holds request {request.id}, which is not done")


def check_retired(retired: Sequence[Request], resident: Sequence[Request]) -> None:
    """Raises PolicyError unless all that retire are resident and done."""
    if not isinstance(retired, Sequence):
        raise PolicyError(f"retire returned {type(retired).__name__}, not a list of requests")
    if not retired:
        return
    here = {request.id for request in resident}
    if len({request.id for request in retired}) < len(retired):
        raise PolicyError("the policy retires a request twice")
    for request in retired:
        if request.id not in here:
            raise PolicyError(f"the policy retires {request.id}, which is not resident")
        if not request.done:
            raise PolicyError(f"the policy retires {request.id}, which is not done")
