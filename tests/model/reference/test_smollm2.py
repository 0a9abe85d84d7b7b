"""SmolLM2-135M-Instruct against `transformers`, on the file that `--model smollm2` names.

`transformers` reads it with a loader of its own and computes in float32 with dequantised weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from generate.modes import ragged
from model import LoadOptions, load_model
from runtime.executor import Executor
from tests.bare import Bare
from tests.smollm2 import FILE, NEEDED
from text.chat import load_chat_template
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

QUESTIONS = (Path(__file__).parent / "questions.txt").read_text().splitlines()
ANSWER_TOKENS = 32
TIE = 1e-4  # best two logits that are closer have no order

pytestmark = [
    *NEEDED,
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(str(FILE))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    template = load_chat_template(str(FILE), tokenizer)
    return [template.encode([{"role": "user", "content": text}]) for text in QUESTIONS]


@pytest.fixture(scope="module")
def peer() -> Any:
    return transformers_model()


def transformers_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = load_gguf_checkpoint(FILE)["config"]
    made = LlamaForCausalLM(LlamaConfig(**config)).float().eval()
    tensors = load_gguf_checkpoint(FILE, return_tensors=True, model_to_load=made)["tensors"]
    missing, unknown = made.load_state_dict(tensors, strict=False)
    assert (missing, unknown) == (["lm_head.weight"], [])  # the embedding
    made.tie_weights()
    return made


def load(dtype: str) -> Executor:
    asked = LoadOptions("dynamic", str(FILE), "cpu", dtype, 0, max_batch_size=64)
    return load_model(asked)


@torch.inference_mode()
def peer_logits(peer: Any, ids: Sequence[int]) -> Tensor:
    """`[tokens, vocabulary]`."""
    logits: Tensor = peer(torch.tensor([list(ids)])).logits[0]
    return logits


def test_greedy_answers_are_those_of_transformers(
    prompts: list[list[int]], tokenizer: Tokenizer, peer: Any
) -> None:
    bare = Bare(load("float32"), ragged)
    sequences = bare.open(prompts, ANSWER_TOKENS)
    for _ in range(ANSWER_TOKENS):
        bare.advance(sequences)
    ties = 0
    for prompt, sequence in zip(prompts, sequences, strict=True):
        # the peer's choice after every beginning of our answer
        logits = peer_logits(peer, sequence.ids)[len(prompt) - 1 : -1]
        for ours, row in zip(sequence.ids[len(prompt) :], logits, strict=True):
            best = row.topk(2)
            if ours != int(best.indices[0]):
                assert best.values[0] - best.values[1] < TIE
                assert ours == int(best.indices[1])
                ties += 1
            if ours in tokenizer.end_ids:
                break
    print(f"ties: {ties}")
    assert ties <= 1
