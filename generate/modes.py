"""The three modes, a row each: which requests run (the policy), how their iteration is laid out,
and how their KV memory is assigned (the ledger)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.blocks import Ledger
from generate.rectangle import RectangleLedger
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.static import Static
from scheduling.prediction.predictor import Predictor
from scheduling.registry import make_policy
from seams import Model, Policy, Step

ModeName = Literal["nobatch", "static", "dynamic"]
LayOut = Callable[[Sequence[Step]], Sequence[Step]]


def alone(steps: Sequence[Step]) -> Sequence[Step]:
    """One sequence: its prompt at first, then a token at a time."""
    (step,) = steps
    return [step]


def padded(steps: Sequence[Step]) -> Sequence[Step]:
    """A rectangle: all prompts at first, then one column of tokens at a time. Padding on the left
    ends all rows in the same column, where the next token is drawn. A row that is done stays and is
    computed as padding, which is the cost of a rectangle."""
    width = max(step.num_tokens for step in steps)
    return [step._replace(padding=width - step.num_tokens) for step in steps]


def ragged(steps: Sequence[Step]) -> Sequence[Step]:
    """Rows of any length and phase, nothing padded: the linear layers see one matrix of all tokens,
    attention sees each row's own past ("selective batching", Orca, OSDI '22, section 4.2)."""
    return steps


@dataclass(frozen=True, slots=True)
class Mode:
    """`policy` is given the server's options and the step time, `ledger` what `make_ledger` is
    given."""

    policy: Callable[[Any, Predictor], Policy]
    lay_out: LayOut
    ledger: Callable[..., Ledger]


MODES: dict[ModeName, Mode] = {
    "nobatch": Mode(lambda options, predictor: NoBatch(), alone, RectangleLedger),
    "static": Mode(
        lambda options, predictor: Static(
            options.max_wait_ms / 1000, "batch" if options.static_release == "batch" else "own"
        ),
        padded,
        RectangleLedger,
    ),
    "dynamic": Mode(
        lambda options, predictor: make_policy(options.policy, options, predictor), ragged, Ledger
    ),
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
