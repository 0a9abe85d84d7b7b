"""The network, its pool and the models of the modes, which every part of the GPU benchmark builds
in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.bare import Job, offline_work
from generate.modes import ModeName
from model import DTYPES, DynamicBatchingServerModel, ServerModel, best_dtype
from models.gpt2 import GPT, GPTConfig, init_weights
from models.shapes import GPT2_SHAPES
from requested import Sampling
from runtime.cache import KVPool, KVShape
from runtime.executor import Executor
from runtime.gpu.device import Device
from seams import Opening, Step

TINY = GPTConfig(vocab_size=97, context=512, n_layer=1, n_head=1, n_embd=16)
SLACK = 192  # tokens beyond the context of a timed step, for its repeats
POOL_SHARE = 0.6  # of the GPU's free memory, at most; the rest is for activations and graphs
FEWEST_REQUESTS = 4
ROUNDS = 2  # batches' worth of requests that the modes are given

LAYOUTS: dict[ModeName, type[Executor]] = {
    "nobatch": ServerModel,
    "static": ServerModel,
    "dynamic": DynamicBatchingServerModel,
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the benchmark is to measure."""

    device: torch.device
    dtype: torch.dtype
    model: str
    tiny: bool
    limits: Sequence[int]
    contexts: Sequence[int]
    kernel: bool  # attention by the Triton kernel; without it there are no graphs

    @classmethod
    def of(
        cls,
        device: torch.device,
        dtype: str,
        model: str,
        *,
        tiny: bool,
        limits: Sequence[int],
        contexts: Sequence[int],
        kernel: bool,
    ) -> Options:
        chosen = best_dtype(device) if dtype == "auto" else DTYPES[dtype]
        return cls(device, chosen, model, tiny, sorted(limits), sorted(contexts), kernel)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def repeats(self) -> int:
        return 1 if self.tiny else 3

    @property
    def name(self) -> str:
        return "a tiny network" if self.tiny else f"random:{self.model}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def longest(self) -> int:
        """Tokens of a row at the end of its timed steps."""
        return max(self.contexts) + SLACK

    @property
    def config(self) -> GPTConfig:
        """The shape of the model, with a position for each token of the longest row."""
        shape = TINY if self.tiny else GPT2_SHAPES[self.model]
        return replace(shape, context=max(shape.context, self.longest))

    def network(self) -> GPT:
        network = GPT(self.config)
        init_weights(network, 0)
        return network.to(self.device, self.dtype).eval().requires_grad_(False)

    def jobs(self, vocab_size: int, limit: int, *, equal: bool) -> list[Job]:
        """The requests of the modes at this batch limit."""
        work = offline_work(vocab_size, max(FEWEST_REQUESTS, ROUNDS * limit), seed=limit)
        if self.tiny:
            work = [Job(job.prompt[:5], min(job.output_tokens, 2)) for job in work[:2]]
        if equal:
            tokens = 2 if self.tiny else 100
            work = [Job((job.prompt * 8)[: 4 if self.tiny else 32], tokens) for job in work]
        return work


class Models:
    """The models of the modes over one network and one pool; iterations run eagerly, or as
    graphs."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.network = options.network()
        shape = KVShape.of(self.network.config, options.dtype, options.device)
        self.rows = max(options.limits)
        blocks = self.rows * -(-options.longest // shape.block_tokens)
        if options.on_gpu:
            free_bytes = torch.cuda.mem_get_info(options.device)[0]
            blocks = min(blocks, int(POOL_SHARE * free_bytes) // shape.block_bytes)
        self._pool = KVPool(shape, blocks)
        self._by_layout: dict[type[Executor], Executor] = {}
        self._devices: dict[bool, Device] = {}
        self.weight_bytes = sum(p.numel() * p.element_size() for p in self.network.parameters())

    def get(self, mode: ModeName, *, graphs: bool) -> Executor:
        """Raises RuntimeError if no graphs can be recorded."""
        layout = LAYOUTS[mode]
        if layout not in self._by_layout:
            model = layout(
                self.network, self.options.dtype, self.options.name, kernel=self.options.kernel
            )
            model.pool = self._pool
            self._by_layout[layout] = model
        model = self._by_layout[layout]
        model.gpu = self._device(graphs)
        return model

    def _device(self, graphs: bool) -> Device:
        if graphs not in self._devices:
            device = Device(self.network, self._pool, kernel=self.options.kernel)
            if graphs:
                device.record_graphs(self.rows)
                if not device.has_graphs:
                    raise RuntimeError("no graphs were recorded")
            self._devices[graphs] = device
        return self._devices[graphs]


def blocks_each(model: Executor, rows: int, tokens: int) -> int:
    """The blocks of a row. Raises RuntimeError if the pool has too few for all."""
    each = -(-tokens // model.block_tokens)
    if rows * each > model.num_blocks:
        raise RuntimeError(
            f"{rows} rows of {tokens} tokens need {rows * each} KV blocks, and the GPU's memory "
            f"holds {model.num_blocks}"
        )
    return each


class Decoding:
    """Rows that decode; a call is a step and the reading of its tokens."""

    def __init__(self, model: Executor, rows: int, context: int, sampling: Sequence[Sampling]):
        """`sampling`: of each row. Raises RuntimeError if the pool is too small."""
        self.model, self.rows, self.at = model, range(rows), context
        self.tokens: list[list[int]] = []
        each = blocks_each(model, rows, context + SLACK)
        prompt = [1] * context
        model.open([Opening(i, prompt, context, sampling[i]) for i in self.rows])
        for i in self.rows:  # one by one: together they might not fit
            step = Step(i, 0, context, True, range(i * each, (i + 1) * each))
            model.start([step], ()).result()

    def __call__(self) -> None:
        steps = [Step(i, self.at, 1, True, ()) for i in self.rows]
        outcome = self.model.start(steps, ()).result()
        self.tokens.append([token for row in outcome.tokens for token in row])
        self.at += 1
