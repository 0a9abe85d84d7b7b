"""The two models that a server runs: one network, executed dense or ragged.

`ServerModel` advances a padded rectangle of rows (one row without batching).
`DynamicBatchingServerModel` advances a ragged pack: requests of different lengths, some in
prefill and some decoding, in one iteration. The linear layers see one flat axis of tokens in
both; they differ in where keys and values lie and in how attention is called.

All of torch, loading included, belongs to the one thread that made the model: a second thread that
uses torch slowed decoding by 12-15 % (OpenMP keeps a team of threads per calling thread).
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gpt.attention import RaggedAttention, RectangleAttention, Span
from gpt.budget import LEAST_TOKENS, KVMemoryError, asked_tokens, cpu_tokens, gpu_tokens
from gpt.cache import (
    KVShape,
    RaggedMemory,
    RectangleKV,
    RectangleMemory,
    RectangleRow,
    SequenceKV,
    rectangle_width,
)
from gpt.checkpoint import load_network
from gpt.linear import pack_linears
from gpt.network import GPT, Attend
from gpt.sampling import logprobs, sample
from kernels import attention_library
from seams import (
    KV,
    RANDOM_PREFIX,
    DeviceLostError,
    Draw,
    Need,
    Outcome,
    OutOfMemoryError,
    Sampling,
    TokenLogprobs,
)

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A smaller network's operators are too short to share: on two busy cores the embedded model was 20
# times slower with two threads than with one, each barrier waiting for a thread without a core.
SHARED_WORK_PARAMETERS = 20e6
WARM_UP_TOKENS = LEAST_TOKENS // 2  # of its prompt


@dataclass(frozen=True, slots=True)
class LoadOptions:
    mode: str
    model: str
    device: str  # auto, cpu, cuda, cuda:1 ...
    dtype: str
    seed: int
    max_batch_size: int
    kv_memory: str = "auto"  # or as gpt.budget.asked_tokens reads it


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is running, for people and reports."""

    name: str
    parameters: int
    dtype: str
    device: str
    note: str | None


def load_model(options: LoadOptions) -> ServerModel:
    """The model of a mode. Raises gpt.checkpoint.CheckpointError, gpt.budget.KVMemoryError."""
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device, dtype = torch.device(name), DTYPES[options.dtype]
    network = load_network(options.model, device, dtype, options.seed)
    if count_parameters(network) < SHARED_WORK_PARAMETERS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    kind = DynamicBatchingServerModel if options.mode == "dynamic" else ServerModel
    shape = KVShape.of(network.config, dtype, device)
    most_tokens = options.max_batch_size * network.config.context
    model = kind(network, dtype, most_tokens, options.model)
    if options.kv_memory != "auto":
        model.memory.budget = asked_tokens(options.kv_memory, shape)
    elif device.type == "cuda":
        activations = model.worst_activation_bytes(options.max_batch_size)
        model.memory.budget = gpu_tokens(shape, most_tokens, activations)
    else:
        model.memory.budget = cpu_tokens(shape, most_tokens)
    log.info("%s", model.describe())
    return model


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A row after its forward: its new tokens end before `end` of the flat axis."""

    draw: Draw | None
    end: int
    length: int
    start: int  # position of its first new token


Method = TypeVar("Method", bound=Callable[..., Any])


def with_our_errors(method: Method) -> Method:
    """A method of an object with a `device`: what torch raises for want of memory, or since the
    device is lost, is raised as `seams` has it."""

    @functools.wraps(method)
    def translated(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(str(error)) from error
        except RuntimeError as error:
            if self.device.type == "cuda" and _is_lost(self.device):
                raise DeviceLostError(str(error).partition("\n")[0]) from error
            raise

    return cast(Method, translated)


def _is_lost(device: torch.device) -> bool:
    """Whether an error sticks, as after an assertion in a kernel: CUDA then reports it at every
    call until the process ends."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def count_parameters(network: GPT) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


class ServerModel:
    """Weights, device, and the dense forward with a KV cache: seams.DenseModel."""

    def __init__(self, network: GPT, dtype: torch.dtype, kv_tokens: int, name: str) -> None:
        self.network = network
        self.dtype = dtype
        self.device = network.wte.weight.device
        self.context = network.config.context
        self.vocab_size = network.config.vocab_size
        self.memory = self._make_memory(kv_tokens)
        self.info = ModelInfo(
            name=name,
            parameters=count_parameters(network),
            dtype=str(dtype).removeprefix("torch."),
            device=torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else str(self.device),
            note="random weights: real work, meaningless text"
            if name.startswith(RANDOM_PREFIX)
            else None,
        )
        self._shape = KVShape.of(network.config, dtype, self.device)
        pack_linears(network)

    def _make_memory(self, tokens: int) -> RectangleMemory | RaggedMemory:
        return RectangleMemory(tokens)

    def describe(self) -> str:
        note = f" ({self.info.note})" if self.info.note else ""
        return (
            f"model {self.info.name}{note}: {self.info.parameters / 1e6:.1f} M parameters, "
            f"{self.info.dtype} on {self.info.device} ({torch.get_num_threads()} CPU threads), "
            f"context {self.context}, KV memory for {self.memory.budget} tokens"
        )

    @torch.inference_mode()
    @with_our_errors
    def allocate(self, needs: Sequence[Need]) -> list[KV]:
        """One rectangle for sequences admitted together."""
        width = rectangle_width(needs)
        rectangle = RectangleKV(self._shape, len(needs), width)
        self.memory.take(len(needs) * width, rectangle)
        return [RectangleRow(rectangle, index) for index in range(len(needs))]

    @torch.inference_mode()
    @with_our_errors
    def forward(
        self,
        tokens: Sequence[Sequence[int]],
        lengths: Sequence[int],
        kvs: Sequence[KV],
        draws: Sequence[Draw | None],
    ) -> Outcome:
        """Advances every row of the rectangle by `width` columns; see seams.DenseModel."""
        start_s = time.perf_counter()
        rectangle, width = cast(RectangleRow, kvs[0]).rectangle, len(tokens[0])
        if not rectangle.pads:
            rectangle.pads = [width - length for length in lengths]
        columns = torch.arange(rectangle.filled, rectangle.filled + width)
        pads = torch.tensor(rectangle.pads)[:, None]
        # rows that are done run on as padding, possibly past the last position there is
        positions = (columns - pads).clamp_(0, self.context - 1).flatten()
        hidden = self._run(
            [token for row in tokens for token in row],
            positions,
            self._dense_attention(rectangle, width, lengths),
        )
        rectangle.filled += width
        spans = [
            _Drawn(draw, width * (row + 1), length, rectangle.filled - pad - length)
            for row, (draw, length, pad) in enumerate(
                zip(draws, lengths, rectangle.pads, strict=True)
            )
        ]
        return self._outcome(hidden, spans, len(tokens) * width, start_s)

    def _dense_attention(
        self, rectangle: RectangleKV, width: int, lengths: Sequence[int]
    ) -> Attend:
        if self.device.type == "cuda" or attention_library() is None:
            return RectangleAttention(rectangle, width, self.device)
        spans = [
            Span(
                first=(row + 1) * width - length,
                count=length,
                start=rectangle.filled + width - length - pad,
                keys=rectangle.keys[:, row, :, pad:],
                values=rectangle.values[:, row, :, pad:],
            )
            for row, (length, pad) in enumerate(zip(lengths, rectangle.pads, strict=True))
        ]
        return RaggedAttention(spans, self.dtype, self.device)

    def _run(self, tokens: list[int], positions: Tensor, attend: Attend) -> Tensor:
        """Flat tokens and positions -> hidden states `[N, C]`."""
        hidden: Tensor = self.network(
            torch.tensor(tokens).to(self.device), positions.to(self.device), attend
        )
        return hidden

    def _outcome(
        self, hidden: Tensor, rows: Sequence[_Drawn], positions: int, start_s: float
    ) -> Outcome:
        """Next tokens, and logprobs where they are wanted, from hidden states `[N, C]`."""
        wanted = [
            (i, row.draw, row.end - 1)
            for i, row in enumerate(rows)
            if row.draw is not None and row.draw.next_token
        ]
        picked: list[int | None] = [None] * len(rows)
        found: dict[int, TokenLogprobs] = {}
        if wanted:
            logits = self.network.head(hidden[[last for _, _, last in wanted]])
            tokens = sample(logits, [draw for _, draw, _ in wanted]).tolist()
            for j, (i, draw, _) in enumerate(wanted):
                picked[i] = tokens[j]
                if draw.sampling.logprobs is not None:
                    (found[i],) = logprobs(
                        logits[j : j + 1], tokens[j : j + 1], draw.sampling.logprobs
                    )
        prompts = {
            i: self._prompt_logprobs(hidden, row)
            for i, row in enumerate(rows)
            if row.draw is not None and row.draw.sampling.prompt_logprobs is not None
        }
        if not wanted and self.device.type == "cuda":
            # nothing was read back yet: the duration would be that of the launch
            torch.cuda.synchronize(self.device)
        return Outcome(picked, positions, time.perf_counter() - start_s, found, prompts)

    def _prompt_logprobs(self, hidden: Tensor, row: _Drawn) -> Sequence[TokenLogprobs]:
        """Of the prompt tokens that follow the row's new positions."""
        assert row.draw is not None
        assert row.draw.sampling.prompt_logprobs is not None
        ahead = row.draw.known[
            row.start + 1 : min(row.start + row.length + 1, row.draw.prompt_tokens)
        ]
        if not ahead:
            return ()
        first = row.end - row.length
        logits = self.network.head(hidden[first : first + len(ahead)])
        return logprobs(logits, ahead, row.draw.sampling.prompt_logprobs)

    def warm_up(self) -> None:
        """A prefill and a decode, so that no request pays for what is built at first use."""
        kvs = self.allocate([Need(WARM_UP_TOKENS, WARM_UP_TOKENS)])
        self._advance_together(kvs, 0, WARM_UP_TOKENS)
        self._advance_together(kvs, WARM_UP_TOKENS, 1)

    def worst_activation_bytes(self, rows: int) -> int:
        """What a CUDA device takes for an iteration beside weights, keys and values: measured with
        `rows` prompts of the model's context, the most that a batch can hold. Where that many do
        not fit the loop would halve its batch, and so does this. Raises KVMemoryError."""
        while True:
            try:
                return self._activation_bytes(rows)
            except OutOfMemoryError as error:
                if rows == 1:
                    raise KVMemoryError(f"not one sequence fits into the GPU: {error}") from error
                rows //= 2

    def _activation_bytes(self, rows: int) -> int:
        torch.cuda.reset_peak_memory_stats(self.device)
        kvs = self.allocate([Need(self.context, 0)] * rows)
        held_bytes = torch.cuda.memory_allocated(self.device)
        self._advance_together(kvs, 0, self.context)
        return torch.cuda.max_memory_allocated(self.device) - held_bytes

    def _advance_together(self, kvs: Sequence[KV], start: int, tokens: int) -> None:
        """An iteration that advances all of them by as many tokens, and draws their next."""
        draw = Draw(Sampling(), [0] * (start + tokens), start + tokens)
        rows = len(kvs)
        self.forward([[0] * tokens] * rows, [tokens] * rows, kvs, [draw] * rows)


class DynamicBatchingServerModel(ServerModel):
    """The attention variant for requests of different lengths in one iteration:
    seams.RaggedModel. Nothing is padded, and each sequence owns its keys and values."""

    def _make_memory(self, tokens: int) -> RaggedMemory:
        return RaggedMemory(tokens)

    @torch.inference_mode()
    @with_our_errors
    def allocate(self, needs: Sequence[Need]) -> list[KV]:
        """A cache of its own for each sequence."""
        kvs: list[KV] = []
        for need in needs:
            kv = SequenceKV(self._shape, need.known + need.further)
            self.memory.take(need.known + need.further, kv)
            kvs.append(kv)
        return kvs

    @torch.inference_mode()
    @with_our_errors
    def grow(self, kv: KV, tokens: int) -> None:
        """See seams.RaggedModel. What is counted returns with the handle, grown or not."""
        assert isinstance(kv, SequenceKV)
        self.memory.take(tokens - kv.capacity, kv)
        kv.capacity = tokens
        kv.grow()

    @torch.inference_mode()
    @with_our_errors
    def forward_ragged(
        self,
        tokens: Sequence[int],
        lengths: Sequence[int],
        starts: Sequence[int],
        kvs: Sequence[KV],
        draws: Sequence[Draw | None],
    ) -> Outcome:
        """Advances row i by `lengths[i]` tokens from `starts[i]` on; see seams.RaggedModel."""
        start_s = time.perf_counter()
        ends = list(itertools.accumulate(lengths))
        spans = [
            Span(end - length, length, start, kv.keys, kv.values)
            for end, length, start, kv in zip(
                ends, lengths, starts, cast(Sequence[SequenceKV], kvs), strict=True
            )
        ]
        positions = torch.tensor(
            [
                start + i
                for start, length in zip(starts, lengths, strict=True)
                for i in range(length)
            ]
        )
        attend = RaggedAttention(spans, self.dtype, self.device)
        hidden = self._run(list(tokens), positions, attend)
        rows = [
            _Drawn(draw, end, length, start)
            for draw, end, length, start in zip(draws, ends, lengths, starts, strict=True)
        ]
        return self._outcome(hidden, rows, len(tokens), start_s)

    def _advance_together(self, kvs: Sequence[KV], start: int, tokens: int) -> None:
        draw = Draw(Sampling(), [0] * (start + tokens), start + tokens)
        rows = len(kvs)
        self.forward_ragged(
            [0] * tokens * rows, [tokens] * rows, [start] * rows, kvs, [draw] * rows
        )
