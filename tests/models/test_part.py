"""What each shard reads of a checkpoint: its own part alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.gpt2 import GPT, GPTConfig, init_weights
from models.part import Part
from models.weights.checkpoint import load_checkpoint, save_checkpoint
from models.weights.folder import FolderSource
from models.weights.source import CheckpointError

CONFIG = GPTConfig(vocab_size=31, context=16, n_layer=2, n_head=6, n_embd=24)  # 31 is odd


@pytest.fixture(scope="module")
def network() -> GPT:
    network = GPT(CONFIG)
    init_weights(network, 0)
    torch.manual_seed(0)
    for parameter in network.parameters():  # biases, too
        torch.nn.init.normal_(parameter)
    return network.requires_grad_(False)


@pytest.fixture(scope="module")
def folder(network: GPT, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(network, folder, torch.float32)
    return folder


def test_a_shard_reads_its_own_part_of_the_file_alone(
    network: GPT, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

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
    own = load_checkpoint(folder, Part(1, 3))
    assert read == sum(tensor.numel() for tensor in own.parameters())
    assert read < 0.4 * sum(parameter.numel() for parameter in network.parameters())


def test_heads_that_cannot_be_split_are_refused_with_what_can_be(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="over 4 shards; allowed: 1, 2, 3, 6"):
        load_checkpoint(folder, Part(0, 4))
