"""Logprobs of an iteration: of tokens under the model's own distribution, before temperature,
penalties and truncation, with the most likely alternatives. All rows together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seams import TokenLogprobs

# positions whose logits exist at once: 256 of GPT-2's vocabulary take 100 MB with their copies
CHUNK = 256


class Wanted(NamedTuple):
    """A row's tokens to score."""

    row: int
    first: int  # index of the first in its sequence
    at: int  # row of the hidden states that predicts the first; the others follow
    tokens: Sequence[int]
    alternatives: int

    @property
    def places(self) -> NDArray[np.int64]:
        return np.arange(self.at, self.at + len(self.tokens))


def score(logits: Tensor, tokens: Tensor, alternatives: int) -> list[Tensor]:
    """logits `[N, V]`, tokens `[N]` -> their logprobs `[N]`, the best ids and logprobs `[N, A]`."""
    scores = logits.float().log_softmax(-1)
    best = scores.topk(min(alternatives, scores.shape[-1]))
    return [scores.gather(1, tokens[:, None])[:, 0], best.indices, best.values]


def numbers_of(wanted: Sequence[Wanted]) -> list[NDArray[np.int64]]:
    """Places and tokens of all rows, one after the other."""
    tokens = np.concatenate([w.tokens for w in wanted]).astype(np.int64)
    return [np.concatenate([w.places for w in wanted]), tokens]


def score_all(
    places: Tensor,
    tokens: Tensor,
    alternatives: int,
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """As `score`, for the numbers of all rows, in chunks."""
    chunks = [
        score(
            head(hidden.index_select(0, places[i : i + CHUNK])), tokens[i : i + CHUNK], alternatives
        )
        for i in range(0, len(places), CHUNK)
    ]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


def in_words(wanted: Sequence[Wanted], found: Sequence[NDArray[Any]]) -> list[list[TokenLogprobs]]:
    """The results of `score`, read back, row by row."""
    rows, at = [], 0
    for _, _, _, tokens, alternatives in wanted:
        mine = slice(at, at + len(tokens))
        chosen, ids, values = (array[mine].tolist() for array in found)
        rows.append(
            [
                TokenLogprobs(
                    token, p, tuple(zip(its_ids[:alternatives], its[:alternatives], strict=True))
                )
                for token, p, its_ids, its in zip(tokens, chosen, ids, values, strict=True)
            ]
        )
        at += len(tokens)
    return rows
