"""The networks, their pools, and the models of the modes over them, which the parts of the GPU
benchmark build in their own processes. Weights are random and drawn on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from benchmarks.bare import Job, offline_work
from generate.modes import ModeName
from model import DTYPES, DynamicBatchingServerModel, ServerModel, best_dtype
from models.decoder import RMSNorm
from models.description import Description, Rope
from models.gpt2 import GPTConfig
from models.networks import SHAPES, Config, Network, make
from runtime.cache import KVPool, KVShape
from runtime.executor import Executor
from runtime.gpu.device import Device
from seams import Opening, Sampling, Step

NAMES = ("llama-3.2-1b", "gpt2-medium", "qwen3-0.6b")
_TINY = Description(
    "llama", vocab_size=97, context=512, n_layer=1, n_head=2, kv_heads=1, head_dim=16, n_embd=32,
    mlp_width=32, norm_eps=1e-5, tied=True, ropes=(Rope(1e4),), windows=(None,),
)  # fmt: skip
TINY: dict[str, Config] = {
    "llama-3.2-1b": _TINY,
    "gpt2-medium": GPTConfig(vocab_size=97, context=512, n_layer=1, n_head=1, n_embd=16),
    "qwen3-0.6b": replace(_TINY, family="qwen3", qk_norms=True),
}
SLACK = 192  # tokens beyond the context of a timed step, for its repeats
POOL_SHARE = 0.6  # of the GPU's free memory, at most; the rest is for activations and graphs
ROUNDS = 2  # batches' worth of requests that the modes are given
SAMPLING = {
    "greedy": Sampling(temperature=0),
    "temperature 1": Sampling(),
    "top_p 0.9": Sampling(top_p=0.9),
}
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
    tiny: bool
    kernel: bool  # the Triton kernels; without them there are no graphs

    @classmethod
    def of(cls, device: torch.device, dtype: str, *, tiny: bool, kernel: bool) -> Options:
        chosen = best_dtype(device) if dtype == "auto" else DTYPES[dtype]
        return cls(device, chosen, tiny, kernel)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def times(self) -> int:
        """Calls that are timed together."""
        return 1 if self.tiny else 20

    def config(self, name: str, context: int) -> Config:
        """A published shape, or a tiny one, planned for so many positions."""
        return replace((TINY if self.tiny else SHAPES)[name], context=context)


def network(config: Config, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Network:
    """Normal(0, 0.02) weights, and norms of ones; the same for one seed, device and type."""
    with torch.device(device):
        made = make(config)
        generator = torch.Generator(device).manual_seed(seed)
    for kind, parameter in made.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, 0.02, generator=generator)
        else:
            nn.init.constant_(parameter, 0.0 if kind.endswith("bias") else 1.0)
    made = made.to(dtype)
    for module in made.modules():
        if isinstance(module, RMSNorm):
            module.float()
    return made.eval().requires_grad_(False)


class Models:
    """The models of the modes over one network and one pool; iterations run eagerly, or as
    graphs."""

    def __init__(
        self, options: Options, name: str, rows: int, tokens: int, dtype: torch.dtype | None = None
    ) -> None:
        """`rows` of `tokens`, or as many as fit into the GPU's memory."""
        self.options, self.rows, self.dtype = options, rows, dtype or options.dtype
        self.network = network(options.config(name, tokens), self.dtype, options.device)
        shape = KVShape.of(self.network.config, self.dtype, options.device)
        blocks = rows * -(-tokens // shape.block_tokens)
        if options.on_gpu:
            free_bytes = torch.cuda.mem_get_info(options.device)[0]
            blocks = min(blocks, int(POOL_SHARE * free_bytes) // shape.block_bytes)
        self._pool = KVPool(shape, blocks)
        self._by_layout: dict[type[Executor], Executor] = {}
        self._devices: dict[bool, Device] = {}
        self.weight_bytes = sum(p.numel() * p.element_size() for p in self.network.parameters())

    @property
    def vocab_size(self) -> int:
        return self.network.config.vocab_size

    def get(self, mode: ModeName = "dynamic", *, graphs: bool) -> Executor:
        """Raises RuntimeError if no graphs can be recorded."""
        layout = LAYOUTS[mode]
        if layout not in self._by_layout:
            kernel = self.options.kernel
            model = layout(self.network, self.dtype, "random weights", kernel=kernel)
            model.pool = self._pool
            self._by_layout[layout] = model
        model = self._by_layout[layout]
        if graphs not in self._devices:
            device = Device(self.network, self._pool, kernel=self.options.kernel)
            if graphs and (unused := device.record_graphs(self.rows)) is not None:
                raise RuntimeError(unused)
            self._devices[graphs] = device
        model.gpu = self._devices[graphs]
        return model


def jobs(vocab_size: int, limit: int, *, equal: bool, tiny: bool) -> list[Job]:
    """The requests of the modes at this batch limit: mixed lengths, or 32 tokens and 100 more."""
    work = offline_work(vocab_size, max(4, ROUNDS * limit), seed=limit)
    if tiny:
        work = [Job(job.prompt[:5], min(job.output_tokens, 2)) for job in work[:2]]
    if equal:
        tokens = 2 if tiny else 100
        work = [Job((job.prompt * 8)[: 4 if tiny else 32], tokens) for job in work]
    return work


class Decoding:
    """Rows that decode; a call is a step and the reading of its tokens."""

    def __init__(self, model: Executor, rows: int, context: int, sampling: Sampling) -> None:
        """Raises RuntimeError if the pool is too small."""
        self.model, self.rows, self.at = model, range(rows), context
        each = -(-(context + SLACK) // model.block_tokens)
        if rows * each > model.num_blocks:
            raise RuntimeError(
                f"{rows} rows of {context + SLACK} tokens need {rows * each} KV blocks, and the "
                f"GPU's memory holds {model.num_blocks}"
            )
        prompt = [1] * context
        own = [replace(sampling, seed=i) for i in self.rows]
        model.open([Opening(i, prompt, context, own[i]) for i in self.rows])
        for i in self.rows:  # one by one: together they might not fit
            step = Step(i, 0, context, True, range(i * each, (i + 1) * each))
            model.start([step], ()).result()

    def steps(self) -> Sequence[Step]:
        """Of the next iteration."""
        return [Step(i, self.at, 1, True, ()) for i in self.rows]

    def __call__(self) -> None:
        self.model.start(self.steps(), ()).result()
        self.at += 1
