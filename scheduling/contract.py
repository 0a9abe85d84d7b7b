"""What a policy may answer, checked at every iteration (some 5 us with 64 residents): a policy of
one's own that is wrong fails with a sentence that says so, before anything was changed by it."""

from __future__ import annotations

from collections.abc import Sequence

from seams import Plan, Request, View


class PolicyError(Exception):
    """A policy broke its contract."""


def check_plan(plan: Plan, view: View) -> None:
    """Raises PolicyError where `plan` is not one that `seams.Plan` describes for this view."""
    if not plan.advance and plan.wake_s is None:
        raise PolicyError("the policy planned nothing, and no time to be asked again")
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
            raise PolicyError(f"the policy advances {new - waiting}, which are not here")
        if len(resident) - len(preempted) + len(new) > view.max_batch_size:
            raise PolicyError(
                f"the policy admits {len(new)} requests to {len(resident) - len(preempted)}; the "
                f"batch limit is {view.max_batch_size}"
            )
    for step in plan.advance:
        if not 0 <= step.tokens <= step.request.known - step.request.computed:
            raise PolicyError(
                f"the policy advances request {step.request.id} by {step.tokens} tokens; it "
                f"has {step.request.computed} of {step.request.known} computed"
            )
    if plan.advance and not any(step.tokens for step in plan.advance):
        raise PolicyError("the policy planned an iteration that computes nothing")


def check_retired(retired: Sequence[Request], resident: Sequence[Request]) -> None:
    """Raises PolicyError unless all that retire are resident and done."""
    here = {request.id for request in resident}
    if len({request.id for request in retired}) < len(retired):
        raise PolicyError("the policy retires a request twice")
    for request in retired:
        if request.id not in here:
            raise PolicyError(f"the policy retires {request.id}, which is not resident")
        if not request.done:
            raise PolicyError(f"the policy retires {request.id}, which is not done")
