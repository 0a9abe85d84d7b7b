"""An independent GPT-2 to compare with: `transformers` on the same small checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import runtime.attention
import runtime.linear.layers
import runtime.sampling.sampler
from model import LoadOptions, load_model
from runtime.executor import Executor
from runtime.sampling.sampler import Known, Sampler

VOCAB, CONTEXT = 307, 96


def make_checkpoint(folder: Path) -> GPT2LMHeadModel:
    """A small random GPT-2 whose logits differ enough for their argmax to mean something."""
    torch.manual_seed(7)
    peer = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=CONTEXT,
            n_embd=64,
            n_layer=3,
            n_head=4,
            initializer_range=0.2,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()
    peer.save_pretrained(folder)
    return peer


@torch.no_grad()
def peer_logits(peer: GPT2LMHeadModel, ids: Sequence[int]) -> Tensor:
    """Logits for the token after `ids`, `[V]`, the whole sequence computed at once."""
    logits: Tensor = peer(torch.tensor([list(ids)])).logits[0, -1]
    return logits


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
        patch.setattr(runtime.sampling.sampler, "sampling_library", lambda: None)
        yield
