"""What a lesson consists of. The product's own classes pass it: they are its solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from generate.modes import MODES, ModeName
from learn.play import Ask
from seams import Policy

Answers = Any  # the reader's file, or a namespace with the same names
# the four requests that the lessons show
FOUR = [
    Ask([11, 12, 13], 4),
    Ask([21, 22], 9),
    Ask([31, 32, 33, 34], 3),
    Ask([41, 42], 4, at_s=0.003),
]


@dataclass(frozen=True, slots=True)
class Lesson:
    """`ours`: what the reader's file has to define, made of the product's classes, of which
    `solution` says where they stand. `checks`: facts, each with a function that raises LessonError
    where it does not hold. `measure`: figures, each with what it says."""

    title: str
    ours: Mapping[str, Any]
    solution: str
    checks: Mapping[str, Callable[[Answers], object]]
    measure: Callable[[Answers], Mapping[str, float]]
    show: Callable[[], str]


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The server's options that the policies of these lessons take."""

    policy: str
    token_budget: int | Literal["auto"]
    max_batch_size: int = 0
    max_wait_ms: float = 0.0
    static_release: Literal["batch", "request"] = "batch"


def product(
    mode: ModeName, policy: str = "orca", token_budget: int | Literal["auto"] = "auto"
) -> Policy:
    """A policy of the product, without predictions of time."""
    return MODES[mode].policy(PolicyOptions(policy, token_budget), cast(Any, None))
