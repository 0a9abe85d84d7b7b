"""The three modes, a row each: which requests run (the policy), how their iteration is laid out,
and how their KV memory is assigned (the ledger)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.blocks import Ledger
from generate import dynamic, nobatch, static
from generate.rectangle import RectangleLedger
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.static import Static
from scheduling.prediction.predictor import StepTime
from scheduling.registry import make_policy
from seams import Model, Policy, Step

ModeName = Literal["nobatch", "static", "dynamic"]
LayOut = Callable[[Sequence[Step]], Sequence[Step]]


@dataclass(frozen=True, slots=True)
class Mode:
    """`policy` is given the server's options and the step time, `ledger` what `make_ledger` is
    given."""

    policy: Callable[[Any, StepTime], Policy]
    lay_out: LayOut
    ledger: Callable[..., Ledger]


def _nobatch_policy(*_: Any) -> Policy:
    return NoBatch()


def _static_policy(options: Any, _: StepTime) -> Policy:
    answers: Literal["own", "batch"] = "batch" if options.static_release == "batch" else "own"
    return Static(options.max_wait_ms / 1000, answers)


def _dynamic_policy(options: Any, predictor: StepTime) -> Policy:
    return make_policy(options.policy, options, predictor)


MODES: dict[ModeName, Mode] = {
    "nobatch": Mode(_nobatch_policy, nobatch.lay_out, RectangleLedger),
    "static": Mode(_static_policy, static.lay_out, RectangleLedger),
    "dynamic": Mode(_dynamic_policy, dynamic.lay_out, Ledger),
}


def make_ledger(
    mode: ModeName, model: Model, growth_tokens: int | None = None, *, prefix_caching: bool = False
) -> Ledger:
    """The ledger of a model's KV memory for the mode. The arguments are those of `Ledger`."""
    return MODES[mode].ledger(
        model.num_blocks,
        model.block_tokens,
        growth_tokens=growth_tokens,
        prefix_caching=prefix_caching,
    )
