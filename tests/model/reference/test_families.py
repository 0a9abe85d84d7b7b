"""The executor serves every family in both layouts: logits of `transformers` at every step."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from generate import dynamic, static
from generate.modes import LayOut
from model import LoadOptions, ModelOptionError, load_model
from tests.bare import Bare
from tests.model.peer import LogitsTap, load, without_kernel
from tests.models.families import FAMILIES, VOCAB, logits_of, write

TOLERANCE = 1e-4
LAYOUTS: dict[str, LayOut] = {"static": static.lay_out, "dynamic": dynamic.lay_out}
NAMES = ["llama", "mistral", "smollm3", "qwen2", "qwen3", "gemma3"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    found = {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp(name)
        found[name] = folder, write(FAMILIES[name](), folder)
    return found


def prompts_of(lengths: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize(("mode", "attention"), [("static", "torch"), ("dynamic", "kernel")])
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_transformers(
    name: str,
    mode: str,
    attention: str,
    checkpoints: dict[str, tuple[Path, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, peer = checkpoints[name]
    tap = LogitsTap(monkeypatch)
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        bare = Bare(load(folder, mode), LAYOUTS[mode])
        sequences = bare.open(prompts_of([1, 40, 7]), 4)
        for step in range(4):
            texts = [list(sequence.ids) for sequence in sequences]
            outcome = bare.advance(sequences)
            for row, ids in enumerate(texts):
                expected = logits_of(peer, ids)[-1]
                assert (tap.seen[step][row] - expected).abs().max() <= TOLERANCE
                assert outcome.tokens[row] == [int(expected.argmax())]


def test_gemma_in_float16_is_refused(checkpoints: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = checkpoints["gemma3"]
    with pytest.raises(ModelOptionError, match="its values exceed float16; allowed: auto"):
        load_model(LoadOptions("dynamic", str(folder), "cpu", "float16", 0, max_batch_size=2))
