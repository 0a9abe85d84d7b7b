"""The embedded model's training: its text and the vocabulary found in it, settings, order of the
text, optimizers, steps, saving and resuming.

The text is the running Python's own standard library: the same Python gives the same files in the
same order with the same split. The ranks are those of byte-level BPE (Sennrich et al., ACL '16).
Every step is a function of the state and its number, so the result does not depend on
interruptions. No clock except to time the steps.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tiktoken
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW, Muon, Optimizer

from models.embedded.vocabulary import END_OF_TEXT, FOLDER, PATTERN, bytes_of_characters
from models.gpt2 import GPT, GPTConfig, causal_attention, init_weights
from options import OptionError, OptionGroup, Options

# Not part of Python, Python 2, machine-specific, or tables and generated text, not source.
EXCLUDED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
    "encodings",
    "pydoc_data",
}
EXCLUDED_PREFIXES = ("config-", "_sysconfigdata")
STDLIB = Path(sysconfig.get_paths()["stdlib"])
HELD_OUT_SHARE = 20  # one file in this many


@dataclass(frozen=True, slots=True)
class Corpus:
    training: tuple[str, ...]  # texts of files, ordered by relative path
    held_out: tuple[str, ...]
    sha256: str  # of all paths and texts


def read_corpus(folder: Path) -> Corpus:
    """All Python files below `folder`, but the few that are not UTF-8; ValueError if there are no
    training or held-out texts."""
    training: list[str] = []
    held_out: list[str] = []
    digest = hashlib.sha256()
    paths = {path.relative_to(folder): path for path in folder.rglob("*.py")}
    for relative, path in sorted(paths.items(), key=lambda item: item[0].as_posix()):
        parts, name = relative.parts, relative.as_posix()
        if EXCLUDED_FOLDERS.intersection(parts) or parts[0].startswith(EXCLUDED_PREFIXES):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            digest.update(f"{name}\0{text}\0".encode())
            # by a hash of the path, so that a file's set does not depend on other files
            number = int(hashlib.sha256(name.encode()).hexdigest(), 16)
            (training if number % HELD_OUT_SHARE else held_out).append(text)
    if not training or not held_out:
        raise ValueError(f"too few Python files below {folder} to split into two sets")
    return Corpus(tuple(training), tuple(held_out), digest.hexdigest())


def train_ranks(texts: Iterable[str], size: int) -> dict[bytes, int]:
    """Token bytes -> rank: the 256 bytes first, then merges in the order in which they were found.

    ValueError if there is too little text for `size` ranks.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = bytes_of_characters()
    found = tokenizer.get_vocab()
    tokens = [bytes(byte_of[c] for c in token) for token in sorted(found, key=found.__getitem__)]
    merged = [token for token in tokens if len(token) > 1]
    ranks = {token: rank for rank, token in enumerate([bytes([b]) for b in range(256)] + merged)}
    if len(ranks) != size:
        raise ValueError(f"the corpus yields {len(ranks)} tokens, not {size}: too little text")
    return ranks


RESULT = OptionGroup("settings that change the result")
RUN = OptionGroup("the run")
STATE = FOLDER.parents[1] / "data" / "embedded-training.pt"
ABOVE_ZERO = 1e-9
ROWS = 4  # rows in one forward: larger ones were slower here, since their buffers exceed the cache
CHUNK = 512  # tokens whose logits exist at the same time: 8 MB at 4096 ids, again for the cache


@dataclass(frozen=True, slots=True)
class Settings(Options):
    """Everything that the result depends on besides the corpus and torch, and how it is computed.
    Raises OptionError for a value with which no network or run is possible."""

    usage: ClassVar = "python -m embedded.train [options]"
    description: ClassVar = "Trains the embedded model. The same command continues a stopped run."
    prefix: ClassVar = "EMBEDDED_"

    seed: int = RESULT.option(1, least=0)
    """of initial weights and order of windows"""
    steps: int = RESULT.option(1400, least=1)
    """updates of the weights"""
    batch: int = RESULT.option(8, least=1)
    """windows in a step"""
    learning_rate: float = RESULT.option(6e-3, least=ABOVE_ZERO)
    """at its peak"""
    warmup_steps: int = RESULT.option(100, least=1)
    """until the learning rate's peak"""
    weight_decay: float = RESULT.option(0.1, least=0)
    """of matrices"""
    gradient_norm: float = RESULT.option(1.0, least=ABOVE_ZERO)
    """above which gradients are scaled down"""
    vocabulary: int = RESULT.option(4096, least=257)
    """number of ids: at least the bytes, and the special token"""
    context: int = RESULT.option(1024, least=1)
    """tokens in a window"""
    layers: int = RESULT.option(6, least=1)
    """blocks of the network"""
    heads: int = RESULT.option(4, least=1)
    """of attention in a block"""
    width: int = RESULT.option(256, least=1)
    """of the hidden state; a multiple of the heads"""

    minutes: float | None = RUN.option(None, least=0)
    """stop after so long; continue later; none: when it is finished"""
    threads: int = RUN.option(os.cpu_count() or 1, least=1)
    """of torch"""
    folder: str = RUN.option(str(FOLDER))
    """folder of the finished model"""
    state: str = RUN.option(str(STATE))
    """file of the unfinished run"""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.width % self.heads:
            raise OptionError(f"width {self.width} is not a multiple of heads {self.heads}")

    @property
    def of_result(self) -> dict[str, Any]:
        return {o.name: getattr(self, o.name) for o in self.declared() if o.group is RESULT}

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
        return f"{self.settings.of_result} on {text}"
