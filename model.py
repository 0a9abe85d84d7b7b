"""The two models that a server runs: one executor, and two layouts of its tokens.

`ServerModel` lays a batch out as a padded rectangle (of one row without batching).
`DynamicBatchingServerModel` lays out a ragged pack: requests of different lengths, some in prefill
and some decoding, in one iteration. The linear layers see one flat axis of tokens in both; they
differ in where keys and values are stored and in how attention is called.

Only the thread that made the model uses torch, loading included (serving/thread.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from models.networks import WHOLE, Part, count_parameters, limit_context
from models.weights.loader import StoredLayers, held_bytes, load, open_source
from models.weights.loader import check as check_source
from models.weights.source import ROUNDED, WeightSource, is_linear, shapes_of
from runtime.attention import Flat, Spans
from runtime.budget import (
    asked_blocks,
    check_weights,
    cpu_blocks,
    gpu_blocks,
    worst_activation_bytes,
)
from runtime.cache import KVShape
from runtime.executor import Executor
from runtime.gpu.choice import resolve_device
from runtime.gpu.comparison import Heads
from runtime.gpu.selfcheck import check, check_heads
from runtime.iteration import Guesses
from runtime.linear.blocks import BlockEmbedding
from runtime.linear.layers import BLOCK_LAYERS, INT8_LAYERS
from runtime.sequence import KnownSequence
from runtime.shards import connect, join
from seams import Columns, DeviceMemoryError, LoadError

log = logging.getLogger(__name__)

# type of activations, keys and values; with int8 only the linear layers' weights differ
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.bfloat16,
}
# A smaller network's operators are too short to share: on two busy cores the embedded model was 20
# times slower with two threads than with one, each barrier waiting for a thread without a core.
SHARED_WORK_PARAMETERS = 20e6
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
WHILE_LOADING = 1 << 18
# The most that glibc itself would choose in a process with allocations of this size (mallopt(3)):
# activations of an iteration come from the heap, without new pages each time.
AFTERWARDS = 1 << 25


@dataclass(frozen=True, slots=True)
class LoadOptions:
    mode: str
    model: str
    device: str  # auto, cpu, cuda, cuda:1 ...
    dtype: str  # auto, or one of DTYPES
    seed: int
    max_batch_size: int
    kv_memory: str = "auto"  # or an amount, as in runtime.budget.asked_blocks
    part: Part = WHOLE
    rendezvous: str = ""  # of the shards, HOST:PORT
    graphs: bool = True  # iterations as CUDA graphs, on a GPU
    revision: str | None = None  # of a model of the hub; None: its main branch
    max_model_len: int | None = None  # None: the model's context
    speculate: int = 0  # most drafts of a row

    @classmethod
    def of(cls, config: Any) -> LoadOptions:
        """From the options of a server or a model server, which have the same names."""
        own = {"part", "rendezvous", "graphs", "speculate"}
        same = {one.name: getattr(config, one.name) for one in fields(cls) if one.name not in own}
        speculate = config.speculate if config.mode == "dynamic" else 0
        return cls(**same, graphs=config.cuda_graphs, speculate=speculate)

    @property
    def most_rows(self) -> int:
        """Of an iteration: drafts are rows, too."""
        return max(self.max_batch_size, 1 + self.speculate)


@contextlib.contextmanager
def returning_what_is_freed() -> Iterator[None]:
    """glibc's allocator, while weights are loaded: what is freed is returned to the system at once.
    Layers are packed one after the other, and each one's own weights are freed. In the heap such a
    hole is a little too small for the next layer of the same size, so memory would grow by a third.
    Changes nothing where the allocator is another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, WHILE_LOADING)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, AFTERWARDS)
        mallopt(M_TRIM_THRESHOLD, 2 * AFTERWARDS)


@returning_what_is_freed()
def load_model(options: LoadOptions) -> Executor:
    """The model of a mode. Raises LoadError."""
    chosen = resolve_device(options.device, options.part)
    device = chosen.device
    if options.dtype == "int8" and device.type != "cpu":
        raise LoadError(
            f"--dtype int8 on --device {options.device}: its kernels run on a CPU; allowed here: "
            "auto, float32, bfloat16, float16"
        )
    source = open_source(options.model, options.seed, options.revision)
    check_source(source, options.part)
    context = context_of(options, source.config.context)
    dtype, stored = dtypes_of(options, source, device)
    shape = KVShape.of(replace(source.config, shards=options.part.shards), dtype, device)
    heads = Heads.of(source.config.n_head // options.part.shards, shape)
    if device.type == "cuda":
        check_heads(options.model, heads)
    else:
        held = "int8" if stored is INT8_LAYERS else str(dtype).removeprefix("torch.")
        held = "4 to 8 bits" if stored is BLOCK_LAYERS else held
        check_weights(held_bytes(source, options.part, dtype, stored), held, shape)
    embedding = BlockEmbedding if stored is BLOCK_LAYERS else None
    network = load(source, options.part, dtype, stored, embedding)
    limit_context(network, context)
    kernel, graphs = None, options.graphs and options.part == WHOLE
    unused = chosen.unused_gpu and f"the model runs on a CPU: {chosen.unused_gpu}"
    if device.type == "cuda":
        found = check(device, heads)
        kernel = found.kernel is None
        unused = found.unused if graphs or not kernel else None
        graphs = graphs and found.graphs is None
        torch.cuda.set_device(device)  # on which Triton and NCCL launch
    network.to(device)
    if options.part != WHOLE:
        join(options.rendezvous, options.part, device)
        connect(network, options.part, invariant=options.speculate > 0)
    parameters = count_parameters(source.config)
    is_small = parameters / options.part.shards < SHARED_WORK_PARAMETERS
    if is_small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    kind = DynamicBatchingServerModel if options.mode == "dynamic" else ServerModel
    model = kind(network, dtype, options.model, kernel=kernel, speculate=options.speculate)
    graphs = graphs and kernel is True
    reserve_memory(model, options, device, graphs=graphs)
    if graphs and model.gpu is not None:
        unused = model.gpu.record_graphs(options.most_rows)
    model.info = replace(model.info, parameters=parameters, unused_gpu=unused)
    if model.num_blocks * model.block_tokens < context:
        log.warning(
            "the KV memory holds %d tokens, and the context has %d: longer requests are refused "
            "(--kv-memory, --max-model-len)",
            model.num_blocks * model.block_tokens,
            context,
        )
    log.info("%s", model.describe())
    return model


def context_of(options: LoadOptions, most: int) -> int:
    """Raises LoadError. `most`: tokens of the model's own context."""
    context = options.max_model_len or most
    if context > most:
        raise LoadError(
            f"--max-model-len is {context}, and the context of '{options.model}' has "
            f"{most} tokens; allowed: up to {most}"
        )
    return context


def dtypes_of(
    options: LoadOptions, source: WeightSource, device: torch.device
) -> tuple[torch.dtype, StoredLayers]:
    """What the network computes in, and the types of quantised weights that it holds. Raises
    LoadError."""
    found = types_of(source) if options.dtype == "auto" and device.type == "cpu" else set()
    stored: StoredLayers = {}
    if options.dtype == "int8" or "int8" in found:
        stored = INT8_LAYERS
    elif found & {*BLOCK_LAYERS, *ROUNDED}:
        stored = BLOCK_LAYERS
    if stored:
        dtype = DTYPES["int8"]  # which the kernels of quantised layers take
    else:
        dtype = best_dtype(device) if options.dtype == "auto" else DTYPES[options.dtype]
    if dtype == torch.float16 and source.config.overflows_float16:
        if options.dtype != "auto":
            raise LoadError(
                f"--dtype float16 with model '{options.model}': its values exceed float16; "
                "allowed: auto, float32, bfloat16"
            )
        dtype = torch.float32
    return dtype, stored


def reserve_memory(
    model: Executor, options: LoadOptions, device: torch.device, *, graphs: bool
) -> None:
    """Of keys and values, beside that of CUDA graphs. Raises LoadError."""
    rows = options.max_batch_size
    if options.kv_memory != "auto":
        blocks = asked_blocks(options.kv_memory, model.shape)
    elif device.type == "cuda":
        needed_bytes = worst_activation_bytes(model, options.most_rows)
        if graphs:
            needed_bytes += model.graph_bytes(options.most_rows)
        blocks = gpu_blocks(model.shape, rows, model.context, needed_bytes)
    else:
        blocks = cpu_blocks(model.shape, rows, model.context)
    try:
        model.allocate(blocks)
    except DeviceMemoryError as error:
        raise LoadError(
            f"there is no memory for {blocks} KV blocks of {model.shape.block_bytes} bytes "
            f"({error}); a smaller --kv-memory or --max-batch-size takes less"
        ) from error


def types_of(source: WeightSource) -> set[str]:
    """Of the weights of its linear layers and embeddings, as they are stored."""
    pieces = [
        p for p in shapes_of(source.config) if is_linear(p) or p in ("wte.weight", "head.weight")
    ]
    return {source.storage(piece) for piece in pieces}


def best_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which a device is fast: on a CPU float32, which is also the most exact. Does not
    occupy a GPU."""
    if device.type != "cuda":
        return torch.float32
    capable = torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if capable else torch.float16


class ServerModel(Executor):
    """The rectangle: every row has the same number of new columns, padded on the left, and of
    blocks, row after row. There are no drafts: rows advance together."""

    def lay_out(self, steps: Columns, rows: Sequence[KnownSequence], _: Guesses) -> Flat:
        firsts = np.array([row.table.blocks[0] for row in rows])
        row_blocks, first_block = len(rows[0].table.blocks), int(firsts.min())
        places = (firsts - first_block) // row_blocks
        count, width = int(places.max()) + 1, steps.paddings[0] + steps.counts[0]
        # rows that do not advance stay and are computed as padding
        counts = np.zeros(count, dtype=np.int64)
        starts = np.zeros(count, dtype=np.int64)
        tokens = [0] * (count * width)
        ends = []
        for start, n, row, place in zip(
            steps.starts, steps.counts, rows, places.tolist(), strict=True
        ):
            end = (place + 1) * width
            tokens[end - n : end] = row.ids[start : start + n]
            counts[place], starts[place] = n, start
            ends.append(end)
        columns = (starts + counts - width)[:, None] + np.arange(width)
        positions = columns.clip(0)  # [rows, width]; any valid position for padding
        length, end = np.array(steps.counts), np.array(ends)
        begins, tables = np.array(steps.starts), [row.table for row in rows]
        spans = Spans(end - length, length, begins, tables)
        return Flat(tokens, positions.ravel(), spans, end)


class DynamicBatchingServerModel(Executor):
    """The pack: rows of different lengths, one after the other. Nothing is padded, and a sequence's
    blocks may be anywhere. A draft is a row of its own over its sequence's blocks, so that it is
    computed as the token would be in its turn, to the last bit."""

    def lay_out(self, steps: Columns, rows: Sequence[KnownSequence], drafts: Guesses) -> Flat:
        begins = list(steps.starts)
        ids = [
            row.ids[start : start + n]
            for row, start, n in zip(rows, steps.starts, steps.counts, strict=True)
        ]
        tables = [row.table for row in rows]
        own = np.arange(len(rows))  # of these, those that are no drafts
        for i in sorted(drafts):
            at, more, end = own[i] + 1, len(drafts[i]), begins[own[i]] + len(ids[own[i]])
            ids[at:at] = [[draft] for draft in drafts[i]]
            begins[at:at] = range(end, end + more)
            tables[at:at] = [rows[i].table] * more
            own[i + 1 :] += more
        tokens = list(chain.from_iterable(ids))
        counts = np.array(list(map(len, ids)))
        ends = counts.cumsum()
        firsts = ends - counts
        spans = Spans(firsts, counts, np.array(begins), tables)
        positions = np.arange(len(tokens)) + (spans.start - firsts).repeat(counts)
        return Flat(tokens, positions, spans, ends[own])
