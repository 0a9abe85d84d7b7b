"""What the host does for a decode step on a GPU: CPU time and calls of functions, counted without a
GPU. The network computes nothing, and an iteration is laid out, packed and sent as for a graph.

    python -m benchmarks.kernels.host                # 1, 64 and 256 rows
    python -m benchmarks.kernels.host --keys 20000

The engine plans with one iteration in flight. A time is the lower quartile of the steps of a run,
in this thread. Calls are those that Python's profiler sees, of functions in C included."""

from __future__ import annotations

import cProfile
import gc
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from batching import BatchingManager
from benchmarks.bare import GREEDY, Tally
from benchmarks.harness.report import here, options, save, table
from engine.inference import Inference
from generate.modes import MODES, make_ledger
from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig
from runtime.gpu.device import Device
from runtime.gpu.paged import Packed
from runtime.iteration import LocalIteration
from scheduling.policies.stall_free import StallFree
from seams import Step
from serving.thread import collect_less

TIMED, COUNTED = 80, 20  # steps
TILE_TOKENS = 64  # of a prompt; kernels.gpu.paged.queries_per_tile of bfloat16
SPARE = 4  # steps that may yet be in flight


class Hosted(DynamicBatchingServerModel):
    """Counts the CPU time of its own part of a step. A graph leaves hidden states of zeros."""

    def __init__(self, rows: int, context: int) -> None:
        config = GPTConfig(vocab_size=97, context=context, n_layer=1, n_head=1, n_embd=16)
        super().__init__(GPT(config).eval().requires_grad_(False), torch.float32, "counted")
        self.spent_s = 0.0
        self.allocate(rows * -(-context // self.block_tokens))
        self.gpu = Device(self.network, self.pool, kernel=True)
        self.gpu._tile_tokens = TILE_TOKENS
        self.gpu._forward = self.gpu._run = _zeros  # type: ignore[assignment, method-assign]
        self.gpu.record_graphs(rows)

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> LocalIteration:
        begin_s = time.thread_time()
        started = super().start(steps, released)
        self.spent_s += time.thread_time() - begin_s
        return started


def _zeros(packed: Packed[Tensor], kept: Tensor | None, *_: object) -> Tensor:
    return torch.zeros(len(packed.tokens) if kept is None else len(kept), 16)


def measure(rows: int, keys: int) -> tuple[int, float, float, float]:
    """Rows; us of a step, and of the model's part until it is launched; calls."""
    outputs = TIMED + COUNTED + SPARE + rows
    model = Hosted(rows, keys + outputs)
    policy = StallFree(max(2 * rows, 4096))
    tally = Tally()
    manager = BatchingManager(policy, [tally], max_batch_size=rows, max_waiting=rows, lookahead=1)
    manager.serve(model, make_ledger("dynamic", model))
    for i in range(rows):
        prompt = [1 + i % 90] * keys
        manager.enqueue(Inference(prompt, outputs, replace(GREEDY, seed=i), time.perf_counter()))
    records = tally.iterations

    def step() -> None:
        manager.step(MODES["dynamic"].lay_out, time.perf_counter)

    while not (records and records[-1].num_tokens == records[-1].batch_size == rows):
        step()
    gc.collect()
    collect_less()  # as the server does
    spent = np.zeros((TIMED, 2))
    for i in range(TIMED):
        begin_s, model.spent_s = time.thread_time(), 0.0
        step()
        spent[i] = time.thread_time() - begin_s, model.spent_s
    with cProfile.Profile() as profile:
        for _ in range(COUNTED):
            step()
    gc.unfreeze()
    calls = sum(entry.callcount for entry in profile.getstats()) / COUNTED
    whole, own = 1e6 * np.quantile(spent, 0.25, axis=0)
    return rows, float(whole), float(own), calls


def main() -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--keys", type=int, default=256, help="of a prompt (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = [measure(rows, args.keys) for rows in args.rows]
    shown = [(rows, *(f"{figure:.0f}" for figure in figures)) for rows, *figures in found]
    text = table("rows: | step, us: | model's part, us: | calls:", shown)
    head = f"a decode step on the host, {args.keys} keys; {here()}"
    save({"keys": args.keys, "results": found}, f"{head}\n\n{text}", args.out, "host")


if __name__ == "__main__":
    main()
