"""The method of the project that this one follows, re-implemented for comparison.

Its dynamic batching recomputed the whole sequence of every request for every token: no KV cache,
linear layers over all tokens of the iteration, one attention call per request and layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.bare import Job
from models.gpt2 import GPT


@torch.inference_mode()
def run_original(network: GPT, work: Sequence[Job]) -> tuple[list[list[int]], float]:
    """All of the work as one dynamic batch, greedy; (tokens generated, seconds)."""
    sequences = [list(job.prompt) for job in work]
    targets = [len(job.prompt) + job.output_tokens for job in work]
    start_s = time.perf_counter()
    while active := [i for i, ids in enumerate(sequences) if len(ids) < targets[i]]:
        lengths = [len(sequences[i]) for i in active]
        tokens = torch.tensor([token for i in active for token in sequences[i]])
        positions = torch.cat([torch.arange(length) for length in lengths])
        hidden = network(tokens, positions, lambda _, q, k, v: _attend(lengths, q, k, v))  # noqa: B023
        last = torch.tensor(lengths).cumsum(0) - 1
        for i, token in zip(active, network.head(hidden[last]).argmax(-1).tolist(), strict=True):
            sequences[i].append(token)
    seconds = time.perf_counter() - start_s
    return [ids[len(job.prompt) :] for ids, job in zip(sequences, work, strict=True)], seconds


def _attend(lengths: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One causal call per request, `[N, H, D]` in and out."""
    out, first = torch.empty_like(q), 0
    for length in lengths:
        of_one = slice(first, first + length)
        q_, k_, v_ = (t[of_one].transpose(0, 1) for t in (q, k, v))
        out[of_one] = F.scaled_dot_product_attention(q_, k_, v_, is_causal=True).transpose(0, 1)
        first += length
    return out
