"""The two models that a server runs: one executor, and two layouts of its tokens.

`ServerModel` lays a batch out as a padded rectangle (of one row without batching).
`DynamicBatchingServerModel` lays out a ragged pack: requests of different lengths, some in prefill
and some decoding, in one iteration. The linear layers see one flat axis of tokens in both; they
differ in where keys and values lie and in how attention is called.

All of torch, loading included, belongs to the one thread that made the model: a second thread that
uses torch slowed decoding by 12-15 % (OpenMP keeps a team of threads per calling thread).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from gpt.attention import RaggedAttention, RectangleAttention, Span, attention_kernel
from gpt.budget import asked_tokens, cpu_tokens, gpu_tokens, worst_activation_bytes
from gpt.cache import RectangleKV, RectangleRow, SequenceKV
from gpt.checkpoint import load_network
from gpt.executor import Executor, Flat, KnownSequence, count_parameters
from gpt.network import Attend
from seams import Step

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A smaller network's operators are too short to share: on two busy cores the embedded model was 20
# times slower with two threads than with one, each barrier waiting for a thread without a core.
SHARED_WORK_PARAMETERS = 20e6


@dataclass(frozen=True, slots=True)
class LoadOptions:
    mode: str
    model: str
    device: str  # auto, cpu, cuda, cuda:1 ...
    dtype: str
    seed: int
    max_batch_size: int
    kv_memory: str = "auto"  # or as gpt.budget.asked_tokens reads it


def load_model(options: LoadOptions) -> Executor:
    """The model of a mode. Raises gpt.checkpoint.CheckpointError, gpt.budget.KVMemoryError."""
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device, dtype = torch.device(name), DTYPES[options.dtype]
    network = load_network(options.model, device, dtype, options.seed)
    if count_parameters(network) < SHARED_WORK_PARAMETERS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    kind = DynamicBatchingServerModel if options.mode == "dynamic" else ServerModel
    most_tokens = options.max_batch_size * network.config.context
    model = kind(network, dtype, options.model, most_tokens)
    if options.kv_memory != "auto":
        model.blocks = asked_tokens(options.kv_memory, model.shape)
    elif device.type == "cuda":
        activations = worst_activation_bytes(model, options.max_batch_size)
        model.blocks = gpu_tokens(model.shape, most_tokens, activations)
    else:
        model.blocks = cpu_tokens(model.shape, most_tokens)
    log.info("%s", model.describe())
    return model


class ServerModel(Executor):
    """The rectangle: every row has as many new columns, padded on the left."""

    def lay_out(self, steps: Sequence[Step], rows: Sequence[KnownSequence]) -> Flat:
        if rows[0].kv is None:
            self._place(steps, rows)
        places = [cast(RectangleRow, row.kv) for row in rows]
        rectangle, width = places[0].rectangle, steps[0].padding + steps[0].tokens
        # rows that are not advanced keep their places: they are computed as padding
        counts = np.zeros(rectangle.rows, dtype=np.int64)
        starts = np.zeros(rectangle.rows, dtype=np.int64)
        tokens = [0] * (rectangle.rows * width)
        ends, spans = [], []
        for step, row, place in zip(steps, rows, places, strict=True):
            end = (place.index + 1) * width
            tokens[end - step.tokens : end] = row.ids[step.start : step.start + step.tokens]
            counts[place.index], starts[place.index] = step.tokens, step.start
            ends.append(end)
            spans.append(Span(end - step.tokens, step.tokens, step.start, place))
        columns = (starts + counts - width)[:, None] + np.arange(width)
        positions = columns.clip(0)  # [rows, width]; of padding any that there is
        attend: Attend
        if attention_kernel(self.shape) is None:
            attend = RectangleAttention(rectangle, positions, counts)
        else:
            attend = RaggedAttention(spans, self.shape)
        return Flat(tokens, positions.ravel(), ends, attend)

    def _place(self, steps: Sequence[Step], rows: Sequence[KnownSequence]) -> None:
        capacity = max(len(step.blocks) for step in steps) * self.block_tokens
        masked = attention_kernel(self.shape) is None
        rectangle = RectangleKV(self.shape, len(rows), capacity, masked=masked)
        for i, row in enumerate(rows):
            row.kv = RectangleRow(rectangle, i)


class DynamicBatchingServerModel(Executor):
    """The pack: rows of different lengths, one after the other. Nothing is padded, and each
    sequence owns its keys and values."""

    def lay_out(self, steps: Sequence[Step], rows: Sequence[KnownSequence]) -> Flat:
        tokens: list[int] = []
        ends, spans = [], []
        for step, row in zip(steps, rows, strict=True):
            if step.blocks or row.kv is None:
                self._grow(row, len(step.blocks) * self.block_tokens)
            first = len(tokens)
            tokens += row.ids[step.start : step.start + step.tokens]
            ends.append(len(tokens))
            spans.append(Span(first, step.tokens, step.start, cast(SequenceKV, row.kv)))
        counts = np.array([step.tokens for step in steps])
        offsets = np.array([step.start for step in steps]) - counts.cumsum() + counts
        positions = np.arange(len(tokens)) + offsets.repeat(counts)
        return Flat(tokens, positions, ends, RaggedAttention(spans, self.shape))

    def _grow(self, row: KnownSequence, tokens: int) -> None:
        if row.kv is None:
            row.kv = SequenceKV.empty(self.shape, tokens)
        else:
            row.kv = row.kv.longer(tokens)
