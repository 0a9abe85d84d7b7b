"""Training in miniature: the real steps, on a network of a few thousand weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embedded.train import train
from embedded.training import Settings, Training, batch_at

SMALL = Settings(
    steps=8, batch=4, warmup_steps=2, vocabulary=300, context=16, layers=1, heads=2, width=32
)
STREAM = torch.randint(SMALL.vocabulary, (2000,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Several threads on so small a network only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(training: Training) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in training.network.parameters()])


def test_a_run_stopped_and_resumed_ends_with_the_same_weights(tmp_path: Path) -> None:
    straight = Training(SMALL, STREAM)
    train(straight, tmp_path / "straight", math.inf)
    part = Training(SMALL, STREAM)
    for _ in range(3):
        part.step()
    part.save(tmp_path / "part")
    resumed = Training(SMALL, STREAM)
    resumed.resume(tmp_path / "part")
    train(resumed, tmp_path / "part", math.inf)
    assert len(resumed.losses) == SMALL.steps
    assert resumed.losses == straight.losses
    assert torch.equal(weights(resumed), weights(straight))


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    Training(SMALL, STREAM).save(tmp_path / "state")
    with pytest.raises(ValueError, match="other settings or another corpus"):
        Training(SMALL, STREAM[:-1]).resume(tmp_path / "state")


def test_training_learns_a_repeating_sequence() -> None:
    settings = replace(SMALL, steps=80)
    training = Training(settings, torch.arange(2000) % 7)
    while not training.finished:
        training.step()
    assert training.losses[0] == pytest.approx(math.log(settings.vocabulary), rel=0.05)
    assert training.losses[-1] < 1.0  # a seventh part of the ids, in order, is all there is


def test_an_epoch_visits_every_window_once() -> None:
    stream = torch.arange(10 * 16 + 16)  # ten windows at any offset
    rows = torch.cat([batch_at(stream, step, SMALL) for step in range(5)])  # two epochs
    for epoch in torch.split(rows, 10):
        starts = sorted(epoch[:, 0].tolist())
        assert len(set(starts)) == 10
        assert {b - a for a, b in itertools.pairwise(starts)} == {16}
    assert torch.equal(rows[:, 1:], rows[:, :-1] + 1)
