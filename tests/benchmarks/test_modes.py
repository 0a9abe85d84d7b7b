"""What the modes are measured against does the same work, and the ratios are of like with like."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bare import Job, offline_work, run_bare
from benchmarks.modes.__main__ import METRICS, NOBATCH_REQUESTS, Turn, ratios
from benchmarks.modes.original import run_original
from client.experiment import Experiment, Found
from model import LoadOptions, load_model
from models.weights.checkpoint import load_network
from scheduling.policies.nobatch import NoBatch


def test_the_originals_method_generates_the_tokens_that_a_cache_does() -> None:
    network = load_network("embedded", torch.device("cpu"), torch.float32, 0)
    model = load_model(LoadOptions("nobatch", "embedded", "cpu", "float32", 0, 1))
    jobs = offline_work(model.vocab_size, 3)
    work = [Job(job.prompt, 8 + 4 * i) for i, job in enumerate(jobs)]
    expected = run_bare(model, NoBatch(), "nobatch", work, 1).outputs
    found, seconds = run_original(network, work)
    assert found == expected
    assert [len(output) for output in found] == [8, 12, 16]
    assert seconds > 0


def test_ratios_are_of_tokens_per_second_within_a_round() -> None:
    """The machine is half as fast in the second round."""
    sides = {"nobatch at 1": 10.0, "static at 32": 40.0, "dynamic at 32": 80.0}
    turns = {
        side: [Turn(NOBATCH_REQUESTS, 640, slow * 640 / speed) for slow in (1.0, 2.0)]
        for side, speed in sides.items()
    }
    found = dict(ratios(Found(Experiment({}, METRICS, "nobatch at 1"), turns), [32]))
    assert {name: value.value for name, value in found.items()} == pytest.approx(
        {"dynamic at 32 / static at 32": 2.0, "dynamic at 32 / nobatch": 8.0}
    )
    assert found["dynamic at 32 / nobatch"].low == pytest.approx(8.0)
