"""The model that ships and its vocabulary: readable by an independent implementation, and not
broken."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import tiktoken
import torch
from transformers import GPT2LMHeadModel

from models.embedded.train import FIGURES_FILE, complete, train
from models.embedded.training import Settings, Training
from models.embedded.vocabulary import FOLDER, load_embedded_encoding
from models.gpt2 import GPT, causal_attention
from models.weights.loader import load_network


@pytest.fixture(scope="module")
def encoding() -> tiktoken.Encoding:
    return load_embedded_encoding()


@pytest.fixture(scope="module")
def network() -> GPT:
    return load_network(FOLDER).eval().requires_grad_(False)


def test_transformers_reads_the_folder_and_computes_the_same_logits(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    theirs = GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32)  # in eval mode
    context = network.config.context
    generator = torch.Generator().manual_seed(1)
    for length in (9, context):
        ids = torch.randint(0, encoding.n_vocab, (length,), generator=generator)
        with torch.inference_mode():
            hidden = network(ids[None], torch.arange(len(ids)), causal_attention)
            difference = network.head(hidden) - theirs(ids[None]).logits
        assert difference.abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("import os\nimport sys\n\nclass Reader:\n    def read(self):\n        return self", "."),
        ("def main():\n    pass\n\nif __name__ == '", "__main__"),
        ("try:\n    import json\nexcept ImportError", ":"),
    ],
)
def test_the_likeliest_next_token_is_what_python_needs(
    network: GPT, encoding: tiktoken.Encoding, prompt: str, expected: str
) -> None:
    assert complete(network, encoding, prompt, 1, temperature=0).startswith(expected)


def test_the_readme_quotes_the_figures_that_training_wrote(network: GPT) -> None:
    figures = json.loads((FOLDER / FIGURES_FILE).read_text())
    readme = (FOLDER / "README.md").read_text()
    for quoted in (
        f"{figures['held_out_loss']:.4f} nats per token",
        f"{figures['held_out_bits_per_character']:.3f} bits per character",
        f"{figures['training_loss']:.4f} nats per token",
        f"{figures['tokens_seen']:,} tokens seen",
        f"{figures['parameters']:,}",
        f"Python {figures['python']}, sha256 `{figures['corpus_sha256']}`",
        ", ".join(f"{name} {value}" for name, value in figures["settings"].items()),
        *(sample["prompt"] + sample["completion"] for sample in figures["samples"]),
    ):
        assert quoted in readme
    assert figures["parameters"] == sum(p.numel() for p in network.parameters())


SMALL = Settings(
    steps=8, batch=4, warmup_steps=2, vocabulary=300, context=16, layers=1, heads=2, width=32
)


def test_a_training_stopped_and_resumed_ends_with_the_same_weights(tmp_path: Path) -> None:
    stream = torch.randint(SMALL.vocabulary, (2000,), generator=torch.Generator().manual_seed(3))
    straight, part, resumed = (Training(SMALL, stream) for _ in range(3))
    train(straight, tmp_path / "straight", math.inf)
    for _ in range(3):
        part.step()
    part.save(tmp_path / "part")
    resumed.resume(tmp_path / "part")
    train(resumed, tmp_path / "part", math.inf)
    assert len(resumed.losses) == SMALL.steps
    assert resumed.losses == straight.losses
    for mine, theirs in zip(
        resumed.network.parameters(), straight.network.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    with pytest.raises(ValueError, match="other settings or another corpus"):
        Training(SMALL, stream[:-1]).resume(tmp_path / "part")
