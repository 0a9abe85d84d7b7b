"""What the engine decides when its model is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app import create_app
from generate.modes import ModeName
from serving.config import Config
from tests.support.hash_app import byte_tokenizer
from tests.support.hash_model import HashModel


@pytest.mark.parametrize(
    ("mode", "device", "ahead"),
    [("dynamic", "NVIDIA H100", 1), ("static", "NVIDIA H100", 1), ("dynamic", "cpu", 0)],
)
def test_iterations_overlap_on_a_gpu(
    mode: ModeName, device: str, ahead: int, tmp_path: Path
) -> None:
    model = HashModel()
    model.info = replace(model.info, device=device)
    config = Config(mode, data_dir=str(tmp_path))
    engine = create_app(config, lambda _: model, byte_tokenizer()).extensions["engine"]
    engine.start()
    while not engine.manager.ready:
        pass
    assert engine.manager.lookahead == ahead
    engine.drain()
    engine.jobs.close()
