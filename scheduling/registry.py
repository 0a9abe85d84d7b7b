"""The policies of the dynamic mode by name, and how each is created from the server's options; and
the ways in which deferred requests share the server.

Your own policy is named `module:Class`. Its constructor is called without arguments, or with the
options if it has a parameter `options`. `docs/write-a-policy.md` shows one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Literal, Protocol

from scheduling.classes.budget import Budget
from scheduling.classes.predictor import StepTime
from scheduling.classes.simple import Exclusive, NoneWaiting, Priority
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.tgi import TGI
from seams import Policy


class PolicyOptionError(ValueError):
    """The policy that is asked for does not exist, or not with these options."""


class PolicyOptions(Protocol):
    """What policies may read of the server's configuration."""

    @property
    def max_batch_size(self) -> int: ...

    @property
    def max_batch_prefill_tokens(self) -> int: ...

    @property
    def max_batch_total_tokens(self) -> int | None: ...  # None: what the KV memory holds

    @property
    def waiting_served_ratio(self) -> float: ...

    @property
    def max_waiting_tokens(self) -> int: ...

    @property
    def token_budget(self) -> int: ...

    @property
    def max_bypass(self) -> int: ...

    @property
    def mode(self) -> Literal["nobatch", "static", "dynamic"]: ...

    @property
    def deferred_policy(self) -> Literal["budget", "fifo", "priority", "exclusive"]: ...

    @property
    def deferred_budget(self) -> float: ...

    @property
    def deferred_target_ms(self) -> float | None: ...

    @property
    def deferred_max_step_ms(self) -> float: ...


def _tgi(options: PolicyOptions) -> Policy:
    return TGI(
        options.max_batch_prefill_tokens,
        options.max_batch_total_tokens,
        options.waiting_served_ratio,
        options.max_waiting_tokens,
    )


def _stall_free(options: PolicyOptions) -> Policy:
    if options.token_budget <= options.max_batch_size:
        raise PolicyOptionError(
            f"--token-budget is {options.token_budget}; allowed with --policy stall-free: more "
            f"than --max-batch-size ({options.max_batch_size}), or decodes leave no tokens for "
            "prompts"
        )
    return StallFree(options.token_budget)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "orca": lambda _: Orca(),
    "tgi": _tgi,
    "stall-free": _stall_free,
    "shortest-first": lambda options: ShortestFirst(options.max_bypass),
}

IN_ORDER = frozenset({"orca", "tgi", "stall-free"})  # those that admit in order of arrival


def make_policy(name: str, options: PolicyOptions) -> Policy:
    """Raises PolicyOptionError."""
    if name in POLICIES:
        return POLICIES[name](options)
    allowed = f"allowed: {', '.join(POLICIES)}, or a policy of your own as module:Class"
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise PolicyOptionError(f"--policy is '{name}'; {allowed}")
    try:
        make = getattr(importlib.import_module(module_name), class_name)
        takes_options = "options" in inspect.signature(make).parameters
        policy: Policy = make(options=options) if takes_options else make()
    except Exception as error:  # any error of the module is reported to its author
        reason = f"{type(error).__name__}: {error}"
        raise PolicyOptionError(
            f"--policy '{name}' cannot be loaded: {reason}; {allowed}"
        ) from error
    missing = [part for part in ("answers", "plan", "retire") if not hasattr(policy, part)]
    if missing:
        raise PolicyOptionError(
            f"--policy '{name}' is not a policy: it lacks {', '.join(missing)} (see seams.Policy)"
        )
    return policy


def with_deferred(policy: Policy, options: PolicyOptions, predictor: StepTime) -> Policy:
    """The policy, with the chosen way to serve two classes of requests around it."""
    match options.deferred_policy:
        case "fifo":
            return policy
        case _ if options.mode != "dynamic":
            return NoneWaiting(policy)
        case "priority":
            return Priority(policy)
        case "exclusive":
            return Exclusive(policy)
        case "budget":
            target_ms = options.deferred_target_ms
            return Budget(
                policy,
                predictor,
                options.deferred_budget,
                options.deferred_max_step_ms / 1000,
                None if target_ms is None else target_ms / 1000,
            )
