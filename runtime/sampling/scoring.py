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

CHUNK_LOGITS = 2**24  # that exist at once: they take 64 MB in float32, and a copy of them as much


class Targets(NamedTuple):
    """Tokens of a row whose logprobs are computed."""

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


def flattened(targets: Sequence[Targets]) -> list[NDArray[np.int64]]:
    """Places and tokens of all rows, one after the other."""
    tokens = np.concatenate([w.tokens for w in targets]).astype(np.int64)
    return [np.concatenate([w.places for w in targets]), tokens]


def score_all(
    places: Tensor,
    tokens: Tensor,
    alternatives: int,
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    vocab_size: int,
) -> list[Tensor]:
    """As `score`, for the numbers of all rows, in chunks."""
    most = max(1, CHUNK_LOGITS // vocab_size)
    parts_of = zip(torch.split(places, most), torch.split(tokens, most), strict=True)
    chunks = [score(head(hidden.index_select(0, at)), of, alternatives) for at, of in parts_of]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


def logprobs_by_row(
    targets: Sequence[Targets], found: Sequence[NDArray[Any]]
) -> list[list[TokenLogprobs]]:
    """The results of `score`, read back, row by row."""
    rows, at = [], 0
    for _, _, _, tokens, alternatives in targets:
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
