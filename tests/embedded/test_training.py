"""Training in miniature: the real steps, on a network of a few thousand weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from embedded.train import train
from embedded.training import Settings, Training, batch_at, encode_stream
from embedded.vocabulary import make_encoding

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


def test_a_run_out_of_minutes_keeps_its_progress(tmp_path: Path) -> None:
    training = Training(SMALL, STREAM)
    train(training, tmp_path / "state", 0.0)
    assert not training.finished
    resumed = Training(SMALL, STREAM)
    resumed.resume(tmp_path / "state")
    assert resumed.losses == training.losses


@pytest.mark.parametrize("change", ["settings", "text"])
def test_a_state_of_another_run_is_refused(tmp_path: Path, change: str) -> None:
    Training(SMALL, STREAM).save(tmp_path / "state")
    other = (
        Training(Settings(**{**_fields(SMALL), "seed": 2}), STREAM)
        if change == "settings"
        else Training(SMALL, STREAM[:-1])
    )
    with pytest.raises(ValueError, match="other settings or another corpus"):
        other.resume(tmp_path / "state")


def _fields(settings: Settings) -> dict[str, int]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def test_training_learns_a_repeating_sequence() -> None:
    settings = Settings(**{**_fields(SMALL), "steps": 80})
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


def test_the_learning_rate_rises_then_falls_to_almost_nothing() -> None:
    settings = Settings()
    rates = [settings.rate_at(step) for step in range(settings.steps)]
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(rates) == pytest.approx(settings.learning_rate)
    assert rates[-1] < settings.learning_rate / 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 30, "heads": 4}, "width 30 is not a multiple of heads 4"),
        ({"steps": 0}, "steps is 0"),
        ({"vocabulary": 256}, "vocabulary is 256, least is 257"),
    ],
)
def test_settings_that_make_no_run_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**change)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="the text has 20 tokens"):
        Training(SMALL, STREAM[:20])


def test_each_text_is_preceded_by_the_separator() -> None:
    encoding = make_encoding({bytes([byte]): byte for byte in range(256)})
    assert encode_stream(encoding, ("ab", "c")).tolist() == [256, 97, 98, 256, 99]
