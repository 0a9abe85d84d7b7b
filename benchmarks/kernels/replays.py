"""The share of iterations that replay a CUDA graph on a GPU, per mode and batch limit: a count,
which needs no GPU.

    python -m benchmarks.kernels.replays

The modes run the work of the GPU benchmark, prompts of 4 to 64 tokens and outputs around 100, with
the layouts of the server and GPT-2's context. The network computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from benchmarks.bare import offline_work, run_bare
from benchmarks.harness.report import options, save, table
from generate.modes import ModeName
from model import DynamicBatchingServerModel, ServerModel
from models.gpt2 import GPT, GPTConfig
from runtime.attention import Counts
from runtime.executor import Executor
from runtime.gpu.buckets import Buckets
from runtime.gpu.graphs import load_of
from runtime.gpu.paged import pack
from runtime.gpu.tables import KeptTables
from runtime.iteration import Flat
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from seams import Policy

LIMITS = (8, 32, 64, 128, 256)
TILE_TOKENS = 64  # of a prompt; kernels.gpu.paged.queries_per_tile of bfloat16
CONFIG = GPTConfig(vocab_size=97, context=1024, n_layer=1, n_head=1, n_embd=16)
MODES: dict[str, tuple[ModeName, type[Executor], Callable[[], Policy]]] = {
    "static": ("static", ServerModel, lambda: Static(max_wait_s=0.0)),
    "dynamic": ("dynamic", DynamicBatchingServerModel, Orca),
    "dynamic, stall-free": ("dynamic", DynamicBatchingServerModel, lambda: StallFree(512)),
}


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the iterations of a run."""

    iterations: int
    decodes: float  # have no prompt and no part of one
    replayed: float


def shares(name: str, limit: int, requests: int) -> Shares:
    """Of one of `MODES`."""
    mode, kind, policy = MODES[name]
    model = kind(GPT(CONFIG).eval().requires_grad_(False), torch.float32, "counted")
    model.allocate(limit * -(-320 // model.block_tokens))
    buckets = Buckets(limit, CONFIG.context, TILE_TOKENS)
    tables = KeptTables(limit, -(-CONFIG.context // model.block_tokens), torch.device("cpu"))
    decodes = replayed = 0

    def run(
        flat: Flat, kept: Counts, drawn: Counts, newest: Tensor | None, also: Sequence[Counts]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        nonlocal decodes, replayed
        of = (flat.tokens, flat.positions, kept, drawn, flat.spans.present(), tables)
        load = load_of(pack(*of, model.block_tokens, TILE_TOKENS)[0])
        decodes += not load.pieces
        replayed += buckets.fitting(load) is not None
        return torch.zeros(len(kept), 1), torch.zeros(len(drawn), CONFIG.vocab_size), []

    model._run = run  # type: ignore[method-assign]
    work = offline_work(CONFIG.vocab_size, requests, seed=limit)
    iterations = len(run_bare(model, policy(), mode, work, limit).tally.iterations)
    return Shares(iterations, decodes / iterations, replayed / iterations)


def main() -> None:
    out = options(__doc__, rounds=None).parse_args().out
    torch.set_num_threads(1)
    found = [
        (limit, name, shares(name, limit, max(4, 2 * limit))) for limit in LIMITS for name in MODES
    ]
    rows = [
        (limit, name, of.iterations, f"{of.decodes:.3f}", f"{of.replayed:.3f}")
        for limit, name, of in found
    ]
    card = table("limit | mode | iterations | decodes alone | replayed", rows)
    save(
        {"results": [(limit, name, asdict(of)) for limit, name, of in found]}, card, out, "replays"
    )


if __name__ == "__main__":
    main()
