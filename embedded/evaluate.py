"""The quality of a trained network: its loss on a stream of tokens, and samples of its text.

Plain forward passes without a KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import tiktoken
import torch
from torch import Tensor
from torch.nn import functional as F

from models.gpt2 import GPT, causal_attention

ROWS = 4  # rows in one forward: larger ones were slower here, since their buffers exceed the cache
CHUNK = 512  # tokens whose logits exist at the same time: 8 MB at 4096 ids, again for the cache


def summed_loss(network: GPT, tokens: Tensor) -> Tensor:
    """tokens `[B, T + 1]` -> the sum over B x T predictions of the cross entropy, in nats."""
    hidden = network(tokens[:, :-1], torch.arange(tokens.shape[1] - 1), causal_attention)
    pairs = zip(
        torch.split(hidden.flatten(0, 1), CHUNK),
        torch.split(tokens[:, 1:].flatten(), CHUNK),
        strict=True,
    )
    losses = [
        F.cross_entropy(network.head(states).float(), targets, reduction="sum")
        for states, targets in pairs
    ]
    return torch.stack(losses).sum()


@torch.inference_mode()
def stream_loss(network: GPT, stream: Tensor) -> float:
    """Mean cross entropy in nats of every token of `[N]` but the first.

    The stream is cut into windows as long as the network's context, each predicted from its own
    start, so early positions count as much as they do in short prompts.
    """
    total = sum(float(summed_loss(network, rows)) for rows in _windows(stream, network))
    return total / (len(stream) - 1)


def _windows(stream: Tensor, network: GPT) -> Iterator[Tensor]:
    """Rectangles `[<= ROWS, context + 1]` that overlap by one token, which is only a target."""
    length = network.config.context
    whole = (len(stream) - 1) // length
    if whole:
        yield from torch.split(stream.unfold(0, length + 1, length)[:whole], ROWS)
    if (len(stream) - 1) % length:
        yield stream[whole * length :].unsqueeze(0)


@torch.inference_mode()
def complete(
    network: GPT, encoding: tiktoken.Encoding, prompt: str, num_tokens: int, temperature: float
) -> str:
    """The text that follows `prompt`; temperature 0 is greedy, others draw with seed 0."""
    generator = torch.Generator().manual_seed(0)
    ids = encoding.encode_ordinary(prompt)
    start = len(ids)
    for _ in range(num_tokens):
        row = torch.tensor([ids])
        hidden = network(row, torch.arange(len(ids)), causal_attention)
        logits = network.head(hidden[0, -1])
        if temperature == 0:
            ids.append(int(logits.argmax()))
        else:
            odds = (logits / temperature).softmax(-1)
            ids.append(int(torch.multinomial(odds, 1, generator=generator)))
    return encoding.decode(ids[start:])
