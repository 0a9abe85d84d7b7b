"""The parts of a mode other than its policy: a layout, and a ledger of its KV memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from engine.blocks import Ledger
from generate import dynamic, nobatch, static
from generate.rectangle import RectangleLedger
from seams import Model, Step

Mode = Literal["nobatch", "static", "dynamic"]
LayOut = Callable[[Sequence[Step]], Sequence[Step]]

LAYOUTS: dict[Mode, LayOut] = {
    "nobatch": nobatch.lay_out,
    "static": static.lay_out,
    "dynamic": dynamic.lay_out,
}


def make_ledger(
    mode: Mode, model: Model, growth_tokens: int | None = None, *, prefix_caching: bool = False
) -> Ledger:
    """The ledger of a model's KV memory for the mode. `growth_tokens`: see memory.Ledger.
    A rectangle neither grows nor shares."""
    if mode != "dynamic":
        return RectangleLedger(model.blocks, model.block_tokens)
    return Ledger(
        model.blocks,
        model.block_tokens,
        growth_tokens=growth_tokens,
        prefix_caching=prefix_caching,
    )
