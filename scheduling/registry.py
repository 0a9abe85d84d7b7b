"""The policies of the dynamic mode by name, how each is created from the server's options, and the
ways in which deferred requests share the server.

Your own policy is named `module:Class`. Parameters of its constructor that have the name of an
option receive that option, one named `options` all of them, and one named `predictor` the learnt
step time. `docs/write-a-policy.md` shows one.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Literal, TypeVar

from scheduling.classes.budget import Budget
from scheduling.classes.simple import Exclusive, NoneWaiting, Priority
from scheduling.composed import Joining, Order, Pausing
from scheduling.contract import PolicyOptionError
from scheduling.policies.fair_slack import FairSlack
from scheduling.policies.orca import Orca
from scheduling.policies.orders.deadline import Deadline
from scheduling.policies.orders.dlpm import DLPM
from scheduling.policies.orders.hrrn import HRRN
from scheduling.policies.orders.mlfq import MLFQ
from scheduling.policies.orders.priority import ByPriority
from scheduling.policies.orders.program import Program
from scheduling.policies.orders.srpt import SRPT
from scheduling.policies.orders.vtc import VTC
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.tgi import TGI
from scheduling.prediction.predictor import Predictor
from seams import Policy

Made = TypeVar("Made")

JOINING: dict[str, Callable[..., Order]] = {
    "hrrn": HRRN,
    "vtc": VTC,
    "dlpm": DLPM,
    "deadline": Deadline,
}
PAUSING: dict[str, Callable[..., Order]] = {
    "mlfq": MLFQ,
    "priority": ByPriority,
    "program": Program,
    "srpt": SRPT,
}


def _composed(
    admission: Callable[[Order, Policy], Policy],
    order: Callable[..., Order],
    options: Any,
    predictor: Predictor | None = None,
) -> Policy:
    chunks = _made(StallFree, options, predictor)
    return admission(_made(order, options, predictor), chunks)


POLICIES: dict[str, Callable[..., Policy]] = {
    "stall-free": StallFree,  # the default
    "orca": Orca,
    "tgi": TGI,
    "shortest-first": ShortestFirst,
    **{name: partial(_composed, Joining, order) for name, order in JOINING.items()},
    **{name: partial(_composed, Pausing, order) for name, order in PAUSING.items()},
    "fair-slack": FairSlack,
}

# those that admit in order of arrival
IN_ORDER = frozenset({"orca", "tgi", "stall-free", "fair-slack"})


def options_of(make: Callable[..., Any], options: Any) -> dict[str, Any]:
    """The server's options that `make` takes: those that its parameters name."""
    names = {field.name for field in fields(options)}
    parameters = inspect.signature(make).parameters
    taken = {name: getattr(options, name) for name in parameters if name in names}
    return {**taken, "options": options} if "options" in parameters else taken


def _made(make: Callable[..., Made], options: Any, predictor: Predictor | None) -> Made:
    learnt = inspect.signature(make).parameters
    further = {"predictor": predictor} if "predictor" in learnt else {}
    return make(**options_of(make, options), **further)


def make_policy(name: str, options: Any, predictor: Predictor | None = None) -> Policy:
    """`options`: a dataclass, the server's. `predictor`: its step time; None: nothing is learnt.
    Raises PolicyOptionError."""
    if name in POLICIES:
        return _made(POLICIES[name], options, predictor)
    allowed = f"allowed: {', '.join(POLICIES)}, or a policy of your own as module:Class"
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise PolicyOptionError(f"--policy is '{name}'; {allowed}")
    try:
        make = getattr(importlib.import_module(module_name), class_name)
        if not callable(make):
            raise TypeError(f"{class_name} is {make!r}, neither a class nor a function")
        policy: Policy = _made(make, options, predictor)
    except Exception as error:  # any error of the module is reported to its author
        reason = f"{type(error).__name__}: {error}{_where(error, module_name)}"
        raise PolicyOptionError(
            f"--policy '{name}' cannot be loaded: {reason}; {allowed}"
        ) from error
    missing = [part for part in ("answers", "plan", "retire") if not hasattr(policy, part)]
    if missing:
        raise PolicyOptionError(
            f"--policy '{name}' is not a policy: it lacks {', '.join(missing)} (see seams.Policy)"
        )
    if policy.answers not in ("own", "batch"):
        raise PolicyOptionError(
            f"--policy '{name}' has answers {policy.answers!r}; allowed: 'own', 'batch'"
        )
    return policy


def _where(error: Exception, module_name: str) -> str:
    """The line of the author's code that failed, if one did."""
    if isinstance(error, ModuleNotFoundError) and error.name == module_name:
        return " in the folder where the server was started, nor on Python's path"
    ours = {__file__, importlib.__file__}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<")
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def with_deferred(
    inner: Policy,
    predictor: Predictor,
    *,
    mode: Literal["nobatch", "static", "dynamic"],
    deferred_policy: Literal["budget", "fifo", "priority", "exclusive"],
    deferred_budget: float,
    deferred_max_step_ms: float,
    deferred_target_ms: float | None,
) -> Policy:
    """The policy `inner`, with the chosen way to serve two classes of requests around it."""
    match deferred_policy:
        case "fifo":
            return inner
        case _ if mode != "dynamic":
            return NoneWaiting(inner)
        case "priority":
            return Priority(inner)
        case "exclusive":
            return Exclusive(inner)
        case "budget":
            target_s = None if deferred_target_ms is None else deferred_target_ms / 1000
            max_step_s = deferred_max_step_ms / 1000
            return Budget(inner, predictor, deferred_budget, max_step_s, target_s)
