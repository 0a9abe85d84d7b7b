"""What quantised weights cost in quality, by the path that serves requests: int8 of the model that
ships, and a real GGUF file's as they are stored."""

from __future__ import annotations

import argparse
import inspect
import math
from pathlib import Path
from pydoc_data import topics

import pytest

from model import LoadOptions, load_model
from runtime.executor import Executor
from seams import Opening, Sampling, Step
from text.vocabulary import load_tokenizer

WINDOW = 1024


def load(dtype: str, device: str = "cpu") -> Executor:
    return load_model(LoadOptions("dynamic", "embedded", device, dtype, 0, 8))


def score(model: Executor, ids: list[int]) -> tuple[float, list[int]]:
    """The perplexity of `ids`, and the likeliest token at each position."""
    loss, likeliest = 0.0, []
    for first in range(0, len(ids), WINDOW):
        window = ids[first : first + WINDOW]
        model.open([Opening(0, window, len(window), Sampling(prompt_logprobs=1))])
        blocks = range(-(-len(window) // model.block_tokens))
        done = model.start([Step(0, 0, len(window), False, blocks)], ()).result()
        _, scored = done.prompt_logprobs[0]
        loss -= sum(each.logprob for each in scored)
        likeliest += [each.top[0][0] for each in scored]
        model.forget()
    return math.exp(loss / len(likeliest)), likeliest


@pytest.fixture(scope="module")
def text() -> list[int]:
    return load_tokenizer("embedded").encode(inspect.getsource(argparse))[: 4 * WINDOW]


@pytest.fixture(scope="module")
def exact(text: list[int]) -> tuple[float, list[int]]:
    return score(load("float32"), text)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rounding_costs_at_most_a_hundredth_of_perplexity(
    dtype: str, text: list[int], exact: tuple[float, list[int]]
) -> None:
    rounded, got = score(load(dtype), text)
    assert rounded <= 1.01 * exact[0]
    same = sum(a == b for a, b in zip(got, exact[1], strict=True)) / len(got)
    print(f"{dtype}: greedy agreement {same:.3f}, perplexity {exact[0]:.3f} -> {rounded:.3f}")
    assert same > 0.9


@pytest.mark.long
def test_smollm2s_stored_weights_cost_at_most_half_a_hundredth_of_perplexity(
    smollm2_file: Path,
) -> None:
    """On the documentation of Python's own language."""
    path, found = str(smollm2_file), {}
    whole = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    ids = load_tokenizer(path).encode(whole[: 64 * WINDOW])[: 8 * WINDOW]
    for dtype in ("float32", "auto"):
        model = load_model(LoadOptions("dynamic", path, "cpu", dtype, 0, 2))
        found[dtype], _ = score(model, ids)
        print(f"{dtype}: perplexity {found[dtype]:.3f}, linear layers by {model.info.kernels}")
    assert found["auto"] <= 1.005 * found["float32"]
