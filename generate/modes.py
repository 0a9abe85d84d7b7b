"""The three modes, a row each: which requests run (the policy), how their iteration is laid out, in
counts, and how their KV memory is assigned (the ledger)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.blocks import Ledger
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.static import Static
from scheduling.prediction.predictor import Predictor
from scheduling.registry import make_policy
from seams import Advance, Model, Policy, Request, Step, Trial

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


class RectangleLedger(Ledger):
    """Of a padded batch, whose cost belongs to the layout: a rectangle opens as a whole, and every
    row has blocks for as many columns as the longest prompt and the longest answer take together.
    Only one rectangle exists at a time, so its blocks are consecutive. It neither grows nor shares,
    whatever the options are."""

    def __init__(self, num_blocks: int, block_tokens: int = 1, **_: object) -> None:
        super().__init__(num_blocks, block_tokens)

    def shares(self, request: Request) -> bool:
        return False

    def trial(self, releasing: Iterable[Request] = ()) -> RectangleTrial:
        return RectangleTrial(self, releasing)

    def open(self, requests: Sequence[Request]) -> Sequence[int]:
        """As `Ledger.open`; the requests are the rows of one rectangle."""
        trial = self.trial()
        for request in requests:
            trial.take(Advance(request, 0))
        self._free.sort(reverse=True)  # the lowest block is taken first
        for request in requests:
            self._assign(request, trial.row_blocks)
        return [0] * len(requests)


class RectangleTrial(Trial):
    """Of a rectangle that is about to open. There is no memory beside another one."""

    def __init__(self, ledger: Ledger, releasing: Iterable[Request]) -> None:
        self.free = ledger.num_blocks if ledger.used == ledger.freed(releasing) else 0
        self.row_blocks = 0
        self._ledger = ledger
        self._rows = self._known = self._further = 0

    def cost(self, step: Advance) -> int:
        """Blocks by which the rectangle grows: by a row, and by what makes every row longer."""
        row_blocks = self._ledger.blocks_of(sum(self._with(step.request)))
        return (self._rows + 1) * row_blocks - self._rows * self.row_blocks

    def charge(self, step: Advance, cost: int) -> None:
        self.free -= cost
        self._known, self._further = self._with(step.request)
        self.row_blocks = self._ledger.blocks_of(self._known + self._further)
        self._rows += 1

    def _with(self, request: Request) -> tuple[int, int]:
        """The longest prompt and the longest answer, this request's included."""
        further = request.max_tokens - request.generated
        return max(self._known, request.known), max(self._further, further)


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
