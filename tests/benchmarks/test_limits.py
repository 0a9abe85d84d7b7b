"""The arithmetic of the machine's limit, against a network that is counted by hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks.limits import Bounds, Pass, bytes_of, least_seconds, operations_of
from models.gpt2 import GPT, GPTConfig
from models.networks import SHAPES, make

CONFIG = GPTConfig(vocab_size=11, context=16, n_layer=2, n_head=2, n_embd=4)
PROMPT = Pass(tokens=3, drawn=1, cached=3, pairs=1 + 2 + 3)


def test_operations_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network = GPT(CONFIG).eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        last = torch.tensor([2])
        network.head(network(torch.arange(3), torch.arange(3), lambda _, q, k, v: v, last))
    attention = 4 * CONFIG.n_embd * CONFIG.n_layer * PROMPT.pairs
    assert operations_of(PROMPT, CONFIG) - attention == counter.get_total_flops()


def test_a_decoder_reads_its_own_weights_and_the_keys_of_its_own_heads() -> None:
    config = SHAPES["qwen3-0.6b"]
    with torch.device("meta"):
        network = make(config)
    done = Pass(tokens=1, drawn=1, cached=100, pairs=100)
    weights = sum(p.numel() for p in network.parameters()) - config.n_embd  # but the last norm
    keys_and_values = 2 * 28 * 8 * 128 * 100
    assert bytes_of(done, config, "bfloat16") == 2 * (weights + keys_and_values)
    assert bytes_of(done, config, "int8") == weights + 2 * keys_and_values  # keys stay bfloat16
    attention = 4 * 28 * 16 * 128 * 100
    matrices = sum(p.numel() for p in network.parameters() if p.dim() == 2)
    assert operations_of(done, config) == 2 * matrices + attention


def test_the_slower_of_reading_and_computing_decides() -> None:
    for limits, whole in (
        (Bounds(1.0, {"bfloat16": 1e30}), bytes_of(PROMPT, CONFIG, "bfloat16")),
        (Bounds(1e30, {"bfloat16": 1.0}), operations_of(PROMPT, CONFIG)),
    ):
        found = least_seconds([PROMPT, PROMPT], CONFIG, "bfloat16", limits)
        assert found == pytest.approx(2 * whole)
