"""Every source of weights is read, and what cannot be read is refused with a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from models.fetch import locate
from models.gpt2 import GPT, GPTConfig, causal_attention, init_weights
from models.networks import GPT2_SHAPES, SHAPES, Part
from models.weights.folder import FolderSource
from models.weights.loader import (
    load,
    load_network,
    open_source,
    save_checkpoint,
)
from seams import LoadError
from tests.models.families import gpt2

TINY = GPTConfig(vocab_size=61, context=32, n_layer=2, n_head=6, n_embd=48)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    network = GPT(TINY)
    init_weights(network, 3)
    save_checkpoint(network, tmp_path, torch.float32)
    return tmp_path


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
def test_checkpoints_of_transformers_are_read_also_in_shards(
    tmp_path: Path, activation: str
) -> None:
    config = gpt2()
    config.activation_function = activation
    peer = GPT2LMHeadModel(config).eval()
    peer.save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokens = torch.arange(20).view(1, -1)
    network = load_network(tmp_path)
    logits = network.head(network(tokens, torch.arange(20)[None], causal_attention))
    assert (peer(tokens).logits - logits).abs().max() < 1e-5


def test_a_random_model_is_seeded_and_has_the_shape_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(GPT2_SHAPES["gpt2"], n_layer=1, n_head=1, n_embd=32)
    monkeypatch.setitem(SHAPES, "small", small)
    first, second, other = (load(open_source("random:small", seed)) for seed in (0, 0, 1))
    assert first.config == small
    assert torch.equal(first.wte.weight, second.wte.weight)
    assert not torch.equal(first.wte.weight, other.wte.weight)


def change(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "layer_idx is True, supported: False"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, supported: True"),
        ({"activation_function": "relu"}, "activation_function is 'relu', allowed: gelu_new"),
        ({"n_layer": "two"}, "n_layer is 'two', supported: a number of 1 or more"),
        ({"n_positions": 64}, "has shape (32, 48), config.json implies (64, 48)"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    folder: Path, fields: dict[str, object], message: str
) -> None:
    change(folder, **fields)
    with pytest.raises(LoadError, match=message.replace("(", r"\(").replace(")", r"\)")):
        load_network(folder)


def test_a_shard_reads_its_own_part_of_the_file_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, whole = 0, sum(tensor.numel() for tensor in load_network(folder).parameters())

    class Counting:
        def __init__(self, source) -> None:  # type: ignore[no-untyped-def]
            self.source = source
            self.get_shape = source.get_shape
            self.get_dtype = source.get_dtype

        def __getitem__(self, where) -> torch.Tensor:  # type: ignore[no-untyped-def]
            nonlocal read
            cut = self.source[where]
            read += cut.numel()
            return cut

    found = FolderSource._named

    def counting(source: FolderSource, name: str) -> Counting | None:
        tensor = found(source, name)
        return None if tensor is None else Counting(tensor)

    monkeypatch.setattr(FolderSource, "_named", counting)
    own = load_network(folder, part=Part(1, 3))
    assert read == sum(tensor.numel() for tensor in own.parameters())
    assert read < 0.4 * whole
    with pytest.raises(LoadError, match="over 4 shards; allowed: 1, 2, 3, 6"):
        load_network(folder, part=Part(0, 4))


def test_damaged_weights_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(LoadError, match=r"no readable model\.safetensors"):
        load_network(folder)


@pytest.mark.parametrize("name", ["no/such/folder", "random:gpt5", "gpt3"])
def test_an_unknown_model_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(LoadError, match="gpt2, gpt2-medium, gpt2-large, gpt2-xl"):
        load_network(name)


def test_a_revision_is_a_branch_a_tag_or_a_commit_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commits = ["1" * 40, "2" * 40]
    kept = tmp_path / "models--openai-community--gpt2"  # as huggingface_hub keeps it
    snapshots = [kept / "snapshots" / commit for commit in commits]
    for snapshot in snapshots:
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).touch()
    refs = kept / "refs"
    refs.mkdir()
    for name, commit in zip(("main", "v2"), commits, strict=True):
        (refs / name).write_text(commit)
    assert locate("gpt2") == locate("gpt2", "main") == snapshots[0]
    assert locate("gpt2", "v2") == locate("gpt2", commits[1]) == snapshots[1]
    with pytest.raises(LoadError, match=r"'gpt2' at revision 'v3' could not be fetched"):
        locate("gpt2", "v3")


@pytest.mark.parametrize("model", ["embedded", "random:gpt2", "./my-gpt2"])
def test_a_revision_of_a_model_that_is_not_downloaded_is_refused(model: str) -> None:
    with pytest.raises(LoadError, match=r"--revision is 'v2', and .* is not downloaded"):
        open_source(model, 0, "v2")
