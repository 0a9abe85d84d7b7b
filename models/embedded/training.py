"""One training run: settings, order of the text, optimizers, steps, saving and resuming.

Every step is a function of the state and its number, so the result does not depend on
interruptions. Uses no files except the state's, and no clock except to time its steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW, Muon, Optimizer

from models.embedded.vocabulary import END_OF_TEXT
from models.gpt2 import GPT, GPTConfig, causal_attention, init_weights

SMALLEST_VOCABULARY = 257  # the bytes and the special token
MAY_BE_ZERO = {"seed", "weight_decay"}
ROWS = 4  # rows in one forward: larger ones were slower here, since their buffers exceed the cache
CHUNK = 512  # tokens whose logits exist at the same time: 8 MB at 4096 ids, again for the cache


def _setting(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the result depends on besides the corpus and torch.

    ValueError for a value with which no network or run is possible.
    """

    seed: int = _setting(1, "of initial weights and order of windows")
    steps: int = _setting(1400, "updates of the weights")
    batch: int = _setting(8, "windows in a step")
    learning_rate: float = _setting(6e-3, "at its peak")
    warmup_steps: int = _setting(100, "until the learning rate's peak")
    weight_decay: float = _setting(0.1, "of matrices")
    gradient_norm: float = _setting(1.0, "above which gradients are scaled down")
    vocabulary: int = _setting(4096, "number of ids, the special token included")
    context: int = _setting(1024, "tokens in a window")
    layers: int = _setting(6, "blocks of the network")
    heads: int = _setting(4, "of attention in a block")
    width: int = _setting(256, "of the hidden state; a multiple of the heads")

    def __post_init__(self) -> None:
        if self.vocabulary < SMALLEST_VOCABULARY:
            raise ValueError(f"vocabulary is {self.vocabulary}, least is {SMALLEST_VOCABULARY}")
        for name in self.__slots__:
            if getattr(self, name) <= 0 and name not in MAY_BE_ZERO:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")

    def network(self) -> GPTConfig:
        return GPTConfig(self.vocabulary, self.context, self.layers, self.heads, self.width)

    def rate_at(self, step: int) -> float:
        """Linear warm-up, then linear decay to zero."""
        rising = (step + 1) / self.warmup_steps
        falling = (self.steps - step) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * min(1.0, rising, falling)


def encode_stream(encoding: tiktoken.Encoding, texts: tuple[str, ...]) -> Tensor:
    """All texts as one `[N]`, each after an end-of-text token."""
    separator = encoding.encode_single_token(END_OF_TEXT)
    pieces = [np.array([separator, *encoding.encode_ordinary(text)], np.int64) for text in texts]
    return torch.from_numpy(np.concatenate(pieces))


def batch_at(stream: Tensor, step: int, settings: Settings) -> Tensor:
    """Step `step`'s windows `[batch, context + 1]`.

    An epoch cuts the stream into windows at its own offset and visits each once, shuffled.
    """
    per_epoch = (len(stream) - settings.context) // settings.context
    indices = range(step * settings.batch, (step + 1) * settings.batch)
    rows = []
    for epoch, place in (divmod(index, per_epoch) for index in indices):
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
        offset = int(torch.randint(settings.context, (), generator=generator))
        order = torch.randperm(per_epoch, generator=generator)
        start = offset + int(order[place]) * settings.context
        rows.append(stream[start : start + settings.context + 1])
    return torch.stack(rows)


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


class Training:
    """Network, optimizers and progress: everything that a stopped run needs to continue.

    Muon (Jordan et al., 2024), which needs fewer steps, trains the matrices of the blocks;
    AdamW trains the rest. ValueError if the stream is shorter than a window.
    """

    def __init__(self, settings: Settings, stream: Tensor) -> None:
        if len(stream) < 2 * settings.context:  # an epoch's offset takes up to a window
            raise ValueError(
                f"the text has {len(stream)} tokens, a context of {settings.context} "
                f"needs at least {2 * settings.context}"
            )
        self.settings, self.stream = settings, stream
        self.losses: list[float] = []  # one a step, nats per token
        self.seconds = 0.0
        self.network = GPT(settings.network())
        init_weights(self.network, settings.seed)
        matrices = [p for p in self.network.blocks.parameters() if p.dim() == 2]
        vectors = [p for p in self.network.parameters() if p.dim() == 1]
        embeddings = [self.network.wte.weight, self.network.wpe.weight]
        self.optimizers: tuple[Optimizer, ...] = (
            Muon(matrices, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"),
            AdamW(
                [
                    {"params": embeddings, "weight_decay": settings.weight_decay},
                    {"params": vectors, "weight_decay": 0.0},
                ],
                betas=(0.9, 0.95),
                fused=True,
            ),
        )

    @property
    def finished(self) -> bool:
        return len(self.losses) >= self.settings.steps

    def step(self) -> None:
        began, settings = time.perf_counter(), self.settings
        for group in itertools.chain(*(o.param_groups for o in self.optimizers)):
            group["lr"] = settings.rate_at(len(self.losses))
        loss = 0.0
        for rows in torch.split(batch_at(self.stream, len(self.losses), settings), ROWS):
            with torch.autocast("cpu", torch.bfloat16):
                part = summed_loss(self.network, rows) / (settings.batch * settings.context)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), settings.gradient_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.losses.append(loss)
        self.seconds += time.perf_counter() - began

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": self._identity(),
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "losses": self.losses,
            "seconds": self.seconds,
        }
        partial = path.with_suffix(".partial")  # a kill while writing must not lose the run
        torch.save(state, partial)
        partial.replace(path)

    def resume(self, path: Path) -> None:
        """Continues the run saved at `path`; ValueError if it had other settings or text."""
        state: dict[str, Any] = torch.load(path)
        if state["identity"] != self._identity():
            raise ValueError(
                f"{path} was saved by a run with other settings or another corpus; "
                "remove it or name another file"
            )
        self.network.load_state_dict(state["network"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.losses, self.seconds = state["losses"], state["seconds"]

    def _identity(self) -> str:
        text = hashlib.sha256(self.stream.numpy().tobytes()).hexdigest()
        return f"{self.settings} on {text}"
