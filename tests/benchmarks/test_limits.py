"""The arithmetic of the machine's limit, against a network that is counted by hand."""

from __future__ import annotations

import pytest
import torch

from benchmarks.limits import (
    Limits,
    bytes_of,
    least_seconds,
    operations_of,
    pass_of,
)
from models.gpt2 import GPT, GPTConfig
from models.networks import make
from models.shapes import SHAPES

CONFIG = GPTConfig(vocab_size=11, context=16, n_layer=2, n_head=2, n_embd=4)


def test_a_pass_counts_what_its_rows_see() -> None:
    """A prompt of three from its start, and a decode at the sixth position."""
    done = pass_of([(0, 3, True), (5, 1, True)])
    assert (done.tokens, done.drawn) == (4, 2)
    assert done.cached == 3 + 6
    assert done.pairs == (1 + 2 + 3) + 6


def test_a_part_of_a_prompt_that_draws_nothing_reads_no_head_and_half_of_the_last_block() -> None:
    silent, drawing = (
        bytes_of(pass_of([(0, 3, drawn)]), CONFIG, "float32") for drawn in (False, True)
    )
    last = GPT(CONFIG).blocks[-1]
    unread = [p for name, p in last.named_parameters() if not name.startswith(("ln_1", "qkv"))]
    head = CONFIG.vocab_size * CONFIG.n_embd
    assert drawing - silent == 4 * (head + sum(p.numel() for p in unread))


def test_int8_halves_the_weights_bytes_and_not_those_of_the_cache() -> None:
    lone, longer = pass_of([(0, 1, True)]), pass_of([(8, 1, True)])
    of_weights = [bytes_of(lone, CONFIG, dtype) for dtype in ("bfloat16", "int8")]
    head = CONFIG.vocab_size * CONFIG.n_embd
    blocks = sum(p.numel() for p in GPT(CONFIG).blocks.parameters())
    assert of_weights[0] - of_weights[1] == blocks + head
    of_cache = [
        bytes_of(longer, CONFIG, dtype) - bytes_of(lone, CONFIG, dtype)
        for dtype in ("bfloat16", "int8")
    ]
    assert of_cache[0] == of_cache[1]


def test_operations_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network = GPT(CONFIG).eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        last = torch.tensor([2])
        network.head(network(torch.arange(3), torch.arange(3), lambda _, q, k, v: v, last))
    done = pass_of([(0, 3, True)])
    attention = 4 * CONFIG.n_embd * CONFIG.n_layer * done.pairs
    assert operations_of(done, CONFIG) - attention == counter.get_total_flops()


def test_a_decoder_reads_its_own_weights_and_the_keys_of_its_own_heads() -> None:
    config = SHAPES["qwen3-0.6b"]
    with torch.device("meta"):
        network = make(config)
    done = pass_of([(99, 1, True)])
    weights = sum(p.numel() for p in network.parameters()) - config.n_embd  # but the last norm
    keys_and_values = 2 * 28 * 8 * 128 * 100
    assert bytes_of(done, config, "bfloat16") == 2 * (weights + keys_and_values)
    attention = 4 * 28 * 16 * 128 * 100
    matrices = sum(p.numel() for p in network.parameters() if p.dim() == 2)
    assert operations_of(done, config) == 2 * matrices + attention


@pytest.mark.parametrize(("bandwidth", "rate"), [(1.0, 1e30), (1e30, 1.0)])
def test_the_slower_of_reading_and_computing_decides(bandwidth: float, rate: float) -> None:
    done = pass_of([(4, 1, True)])
    limits = Limits(bandwidth, {"bfloat16": rate})
    whole = bytes_of(done, CONFIG, "bfloat16") if bandwidth == 1.0 else operations_of(done, CONFIG)
    assert least_seconds([done, done], CONFIG, "bfloat16", limits) == pytest.approx(2 * whole)


def test_the_higher_of_two_measurements_counts() -> None:
    a, b = Limits(1.0, {"float32": 4.0}), Limits(2.0, {"float32": 3.0})
    assert a.or_better(b) == b.or_better(a) == Limits(2.0, {"float32": 4.0})
