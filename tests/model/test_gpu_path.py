"""What runs on a GPU, on a CPU: Triton interprets, graphs are called instead of replayed."""

from __future__ import annotations

import pytest
import torch

from benchmarks.bare import Job, run_bare
from engine.speculation import Speculation
from model import DynamicBatchingServerModel
from runtime.executor import Executor
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from seams import Policy
from tests.model.served import VOCAB, small
from tests.recalling import recall
from tests.scheduling.step_times import FixedStepTime


def make(*, kernel: bool | None, graphs: bool = False) -> Executor:
    model = small(DynamicBatchingServerModel, torch.float32, 40, kernel=kernel)
    if graphs:
        assert model.gpu is not None
        model.gpu.record_graphs(5)
    return model


def replayed(model: Executor) -> int | None:
    assert model.gpu is not None
    return None if model.gpu.graphs is None else model.gpu.graphs.replayed


@pytest.mark.parametrize(("graphs", "drafts"), [(False, 0), (True, 0), (True, 4)])
def test_the_tokens_are_those_of_the_cpus_path(
    graphs: bool, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With graphs, every iteration is one, whatever it mixes, and one may be in flight; drafts are
    beside prompts, and where all rows decode."""
    work = [
        Job([(7 * i + j) % VOCAB for j in range(3 + 9 * i)], 10 if drafts else 2 + i)
        for i in range(2 if drafts else 4)
    ]
    policy: Policy = StallFree(token_budget=16) if graphs and not drafts else Orca()
    expected = run_bare(make(kernel=None), policy, "dynamic", work, 3).outputs
    model = make(kernel=True, graphs=graphs)
    before = replayed(model)
    texts = [[*job.prompt, *tokens] for job, tokens in zip(work, expected, strict=True)]
    recall(texts, monkeypatch, VOCAB)
    found = run_bare(
        model, policy, "dynamic", work, 3, lookahead=int(graphs),
        speculation=Speculation(drafts, FixedStepTime(known=False)) if drafts else None,
    )  # fmt: skip
    assert found.outputs == expected
    iterations = found.tally.iterations
    assert any(record.num_tokens > record.batch_size for record in iterations)
    assert before is None or replayed(model) == before + len(iterations)
    for counts in ("accepted_drafts", "rejected_drafts"):
        assert not drafts or sum(getattr(record, counts) for record in iterations) > 2
