"""What computing with the weights of a real GGUF file as they are stored costs in quality."""

from __future__ import annotations

import math
from pathlib import Path
from pydoc_data import topics

import pytest

from model import LoadOptions, load_model
from requested import Sampling
from runtime.executor import Executor
from seams import Opening, Step
from text.vocabulary import load_tokenizer

WINDOW, WINDOWS = 1024, 8


def perplexity(model: Executor, ids: list[int]) -> float:
    loss, count = 0.0, 0
    for first in range(0, len(ids), WINDOW):
        window = ids[first : first + WINDOW]
        model.open([Opening(0, window, len(window), Sampling(prompt_logprobs=0))])
        blocks = range(-(-len(window) // model.block_tokens))
        done = model.start([Step(0, 0, len(window), False, blocks)], ()).result()
        _, scored = done.prompt_logprobs[0]
        loss -= sum(each.logprob for each in scored)
        count += len(scored)
        model.forget()
    return math.exp(loss / count)


def text(path: Path) -> list[int]:
    """Of the documentation of Python's own language."""
    whole = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return load_tokenizer(str(path)).encode(whole[: 8 * WINDOW * WINDOWS])[: WINDOW * WINDOWS]


@pytest.mark.long
def test_smollm2s_stored_weights_cost_at_most_half_a_hundredth_of_perplexity(
    smollm2_file: Path,
) -> None:
    found = {}
    for dtype in ("float32", "auto"):
        model = load_model(LoadOptions("dynamic", str(smollm2_file), "cpu", dtype, 0, 2))
        found[dtype] = perplexity(model, text(smollm2_file))
        print(f"{dtype}: perplexity {found[dtype]:.3f}, linear layers by {model.info.kernels}")
    assert found["auto"] <= 1.005 * found["float32"]
