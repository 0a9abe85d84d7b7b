"""Executes iterations of the local model: one network, and the sequences that it was told of.

An iteration is a flat axis of tokens. Linear layers see nothing else; a layout (`model.py`) says
which tokens lie where on it, and how attention finds each one's past. Everything is computed within
`start`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.attention import Counts
from gpt.cache import BlockTable, KVPool, KVShape
from gpt.errors import with_our_errors
from gpt.linear.choice import is_batch_invariant, pack_linears
from gpt.linear.layers import Int8Linear
from gpt.network import GPT, Attend
from gpt.sampling import Sampler, logprobs
from seams import RANDOM_PREFIX, Opening, Outcome, Sampling, Step, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is running, for people and reports."""

    name: str
    parameters: int
    dtype: str
    device: str
    note: str | None
    kernels: dict[str, str]  # what computes the linear layers, by inputs x outputs; none on a GPU
    batch_invariant: bool  # by these kernels a row's logits do not depend on the rows beside it


def count_parameters(network: GPT) -> int:
    # an int8 head is a copy of the embedding; elsewhere they are one tensor
    return sum(p.numel() for name, p in network.named_parameters() if name != "head.weight")


class KnownSequence:
    """What the model knows of a sequence; as `gpt.sampling.Known`."""

    __slots__ = ("ids", "prompt_tokens", "sampling", "scored", "table")

    def __init__(self, opening: Opening) -> None:
        self.ids = list(opening.ids)  # and all that is drawn
        self.prompt_tokens = opening.prompt_tokens
        self.sampling = opening.sampling
        self.scored = opening.scored
        self.table = BlockTable()


@dataclass(frozen=True, slots=True)
class Flat:
    """An iteration of `N` positions on one axis."""

    tokens: Sequence[int]  # [N]
    positions: Counts  # [N]
    ends: Sequence[int]  # of each step, where its tokens end
    attend: Attend


@dataclass(frozen=True, slots=True)
class Finished:
    """An iteration that was computed when it was started. As `seams.Pending`."""

    outcome: Outcome

    def result(self) -> Outcome:
        return self.outcome


class Executor(ABC):
    """As `seams.Model`. `allocate` gives it its KV memory, before it is served."""

    lost: str | None = None  # it lives and dies with its process
    pool: KVPool

    def __init__(self, network: GPT, dtype: torch.dtype, name: str) -> None:
        self.network = network
        self.device = network.wte.weight.device
        self.context = network.config.context
        self.vocab_size = network.config.vocab_size
        self.shape = KVShape.of(network.config, dtype, self.device)
        parameters = count_parameters(network)
        int8 = any(isinstance(module, Int8Linear) for module in network.modules())
        kernels = pack_linears(network)
        self.info = ModelInfo(
            name=name,
            parameters=parameters,
            dtype="int8" if int8 else str(dtype).removeprefix("torch."),
            device=torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else str(self.device),
            note="random weights: real work, meaningless text"
            if name.startswith(RANDOM_PREFIX)
            else None,
            kernels=kernels,
            batch_invariant=is_batch_invariant(kernels),
        )
        self._sequences: dict[int, KnownSequence] = {}
        self._sampler = Sampler()

    @with_our_errors
    def allocate(self, blocks: int) -> None:
        """KV memory for all sequences together; what is there already is given up first. Raises
        DeviceMemoryError."""
        if hasattr(self, "pool"):
            del self.pool
        self.pool = KVPool(self.shape, blocks)

    @property
    def blocks(self) -> int:
        return int(self.pool.keys.shape[1])

    @property
    def block_tokens(self) -> int:
        return self.shape.block_tokens

    def describe(self) -> str:
        note = f" ({self.info.note})" if self.info.note else ""
        return (
            f"model {self.info.name}{note}: {self.info.parameters / 1e6:.1f} M parameters, "
            f"{self.info.dtype} on {self.info.device} ({torch.get_num_threads()} CPU threads), "
            f"context {self.context}, KV memory of {self.blocks} blocks of {self.block_tokens} "
            f"tokens: {self.blocks * self.block_tokens} tokens"
        )

    def warm_up(self) -> None:
        """A prefill and a decode, which fill a block, so that no request pays for what is built at
        first use."""
        prompt = self.block_tokens - 1
        self.open([Opening(0, [0] * prompt, prompt, Sampling())])
        self.start([Step(0, 0, prompt, True, (0,))], ())
        self.start([Step(0, prompt, 1, True, ())], ())
        self.forget()

    # --- seams.Model ------------------------------------------------------------------------

    def open(self, new: Sequence[Opening]) -> None:
        for opening in new:
            self._sequences[opening.id] = KnownSequence(opening)

    @torch.inference_mode()
    @with_our_errors
    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Finished:
        """See `seams.Model`. Raises DeviceMemoryError, DeviceLostError."""
        start_s = time.perf_counter()
        for id in released:
            self._sequences.pop(id, None)
        rows = [self._sequences[step.id] for step in steps]
        flat = self.lay_out(steps, rows)
        hidden = self.network(
            torch.tensor(flat.tokens).to(self.device),
            torch.from_numpy(flat.positions).to(self.device),
            flat.attend,
        )  # [N, C]
        found = self._prompt_logprobs(hidden, steps, rows, flat.ends)
        tokens, of_tokens = self._draw(hidden, steps, rows, flat.ends)
        if self.device.type == "cuda" and not any(tokens):
            # nothing was read back yet: the duration would be that of the launch
            torch.cuda.synchronize(self.device)
        duration_s = time.perf_counter() - start_s
        return Finished(Outcome(tokens, len(flat.tokens), duration_s, of_tokens, found))

    @staticmethod
    def _take_blocks(steps: Sequence[Step], rows: Sequence[KnownSequence]) -> None:
        for step, row in zip(steps, rows, strict=True):
            if step.blocks:
                row.table.extend(step.blocks)

    @abstractmethod
    def lay_out(self, steps: Sequence[Step], rows: Sequence[KnownSequence]) -> Flat:
        """Gives sequences the blocks that their steps bring, and says where their tokens lie."""

    def forget(self) -> None:
        """Drops all sequences."""
        self._sequences.clear()

    def _draw(
        self,
        hidden: Tensor,
        steps: Sequence[Step],
        rows: Sequence[KnownSequence],
        ends: Sequence[int],
    ) -> tuple[list[list[int]], dict[int, list[TokenLogprobs]]]:
        """The next token of each row where it is wanted, known from then on, and its logprobs."""
        tokens: list[list[int]] = [[] for _ in steps]
        found = {}
        wanted = [i for i, step in enumerate(steps) if step.draw]
        if wanted:
            logits = self.network.head(hidden[[ends[i] - 1 for i in wanted]])
            drawn = self._sampler.draw(logits, [rows[i] for i in wanted]).tolist()
            for j, (i, token) in enumerate(zip(wanted, drawn, strict=True)):
                row, tokens[i] = rows[i], [token]
                row.ids.append(token)
                if row.sampling.logprobs is not None:
                    found[i] = logprobs(logits[j : j + 1], [token], row.sampling.logprobs)
        return tokens, found

    def _prompt_logprobs(
        self,
        hidden: Tensor,
        steps: Sequence[Step],
        rows: Sequence[KnownSequence],
        ends: Sequence[int],
    ) -> dict[int, tuple[int, list[TokenLogprobs]]]:
        """Of the prompt tokens that follow the new positions, and were not scored before."""
        found = {}
        for i, row in enumerate(rows):
            if row.sampling.prompt_logprobs is not None:
                start, tokens = steps[i].start, steps[i].tokens
                first = max(start, row.scored) + 1
                ahead = row.ids[first : min(start + tokens + 1, row.prompt_tokens)]
                if ahead:
                    at = ends[i] - tokens + first - 1 - start  # the position before the first
                    logits = self.network.head(hidden[at : at + len(ahead)])
                    found[i] = first, logprobs(logits, ahead, row.sampling.prompt_logprobs)
        return found
