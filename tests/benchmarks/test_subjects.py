"""What single benchmarks do beside measuring: a stall, hostile neighbours, the original method."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bare import Job, offline_work, run_bare
from benchmarks.hostile import __main__ as neighbours
from benchmarks.long_prompts import LongPromptsRun
from benchmarks.modes.original import run_original
from model import LoadOptions, load_model
from models.weights.loader import load_network
from scheduling.policies.nobatch import NoBatch


def test_a_stall_is_the_itl_to_that_of_the_same_tokens_without_the_prompts() -> None:
    alone_s = np.linspace(1.0, 2.0, 101)  # contexts grow
    alone_s[70] = 9.0  # something else ran on the machine
    beside_s = np.linspace(1.0, 2.0, 101)
    beside_s[60:90] *= 2.5
    played = LongPromptsRun(beside_s, slice(60, 90), 0.0, 1.0, alone_s)
    assert played.stall() == pytest.approx(2.5, rel=0.02)


def test_a_neighbour_goes_on_beside_clients_whose_bodies_nobody_reads() -> None:
    ((found, answers),) = neighbours.measure(["router"], ["unread bodies"], rounds=1, seconds=1.0)
    assert not answers["alone"]
    assert {status[0] for status in answers["unread bodies"]} == {"4"}
    assert found.figures("unread bodies")[0] > 1


def test_the_originals_method_generates_the_tokens_that_a_cache_does() -> None:
    network = load_network("embedded")
    model = load_model(LoadOptions("nobatch", "embedded", "cpu", "float32", 0, 1))
    jobs = offline_work(model.vocab_size, 3)
    work = [Job(job.prompt, 8 + 4 * i) for i, job in enumerate(jobs)]
    expected = run_bare(model, NoBatch(), "nobatch", work, 1).outputs
    assert run_original(network, work)[0] == expected
