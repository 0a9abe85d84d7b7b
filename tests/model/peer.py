"""An independent GPT-2 to compare with: `transformers` on the same small checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import runtime.attention
import runtime.linear.layers
import runtime.sampling.sampler
from model import LoadOptions, load_model
from runtime.executor import Executor
from runtime.sampling.sampler import Known, Sampler


def load(folder: Path, mode: str, dtype: str = "float32") -> Executor:
    return load_model(LoadOptions(mode, str(folder), "cpu", dtype, 0, max_batch_size=16))


class LogitsTap:
    """Keeps the logits that the model sampled from, iteration by iteration and by the text that
    they follow."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[Tensor] = []
        self.after: dict[tuple[int, ...], Tensor] = {}
        real = Sampler.draw

        def draw(sampler: Sampler, logits: Tensor, rows: Sequence[Known], *more: Any) -> Tensor:
            self.seen.append(logits.float().clone())
            for scores, row in zip(logits, rows, strict=True):
                self.after[tuple(row.ids)] = scores.clone()
            return real(sampler, logits, rows, *more)

        patch.setattr(Sampler, "draw", draw)


@contextlib.contextmanager
def without_kernel() -> Iterator[None]:
    """A machine without a C++ compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.attention, "attention_kernels", lambda head_dim: {})
        patch.setattr(runtime.linear.layers, "linear_kernel", lambda _: None)
        patch.setattr(runtime.sampling.sampler, "draw_kernel", lambda _: None)
        yield
