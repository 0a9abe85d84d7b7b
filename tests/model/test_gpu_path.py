"""What runs on a GPU, on a CPU: Triton interprets, graphs are called instead of replayed."""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks.bare import Job, run_bare
from engine.inference import Inference
from engine.speculation import Speculation
from model import DynamicBatchingServerModel
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from seams import Policy
from tests.model.served import VOCAB, serve, small
from tests.recalling import recall
from tests.scheduling.law import Law
from text.tokenizer import Tokenizer

WORK = [Job([(7 * i + j) % VOCAB for j in range(3 + 9 * i)], 2 + i) for i in range(4)]


def make(*, kernel: bool | None, graphs: bool = False) -> Executor:
    model = small(DynamicBatchingServerModel, torch.float32, 40, kernel=kernel)
    if graphs:
        assert model.gpu is not None
        model.gpu.record_graphs(5)
    return model


def replayed(model: Executor) -> int | None:
    assert model.gpu is not None
    return None if model.gpu.graphs is None else model.gpu.graphs.replayed


@pytest.mark.parametrize("graphs", [False, True])
def test_the_tokens_are_those_of_the_cpus_path(graphs: bool) -> None:
    """With graphs, every iteration is one, whatever it mixes, and one may be in flight."""
    policy: Policy = StallFree(token_budget=16) if graphs else Orca()
    expected = run_bare(make(kernel=None), policy, "dynamic", WORK, 3).outputs
    model = make(kernel=True, graphs=graphs)
    before = replayed(model)
    found = run_bare(model, policy, "dynamic", WORK, 3, lookahead=int(graphs))
    assert found.outputs == expected
    iterations = found.tally.iterations
    assert any(record.num_tokens > record.batch_size for record in iterations)
    assert before is None or replayed(model) == before + len(iterations)


@pytest.mark.parametrize(("graphs", "lookahead"), [(False, 0), (False, 1), (True, 1)])
def test_tokens_with_drafts_are_those_of_the_cpus_path_without(
    graphs: bool, lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside prompts, and where all rows decode; by torch's operators where there are no graphs."""
    work = [Job([(7 * i + j) % VOCAB for j in range(3 + 9 * i)], 10) for i in range(2)]
    expected = run_bare(make(kernel=None), Orca(), "dynamic", work, 3).outputs
    model = make(kernel=graphs, graphs=graphs)
    before = replayed(model)
    texts = [[*job.prompt, *tokens] for job, tokens in zip(work, expected, strict=True)]
    recall(texts, monkeypatch, VOCAB)
    found = run_bare(
        model, Orca(), "dynamic", work, 3, lookahead=lookahead,
        speculation=Speculation(4, Law(known=False)),
    )  # fmt: skip
    assert found.outputs == expected
    iterations = found.tally.iterations
    assert sum(record.accepted_drafts for record in iterations) > 2
    assert sum(record.rejected_drafts for record in iterations) > 2
    assert before is None or replayed(model) == before + len(iterations)


def test_constraints_are_those_of_the_cpus_path() -> None:
    """With one iteration in flight: rows with a constraint wait for their tokens."""
    table = {token: bytes([token + 30]) for token in range(1, VOCAB)} | {0: b"<end>"}
    tokenizer = Tokenizer(lambda text: [byte - 30 for byte in text.encode()], table, [0])
    asked = [
        Sampling(seed=1, constraint=Constraint("regex", "(ab|cd){2} fixed text [0-9]")),
        Sampling(seed=2),
        Sampling(temperature=0, constraint=Constraint("json_schema", '{"type": "boolean"}')),
        Sampling(seed=3, min_p=0.1, constraint=Constraint("regex", "[a-f]{4}")),
    ]
    found = []
    for kernel in (None, True):
        model = make(kernel=kernel)
        model.grammars = Grammars(lambda: tokenizer)
        made = [Inference([5, 6, 7], 14, s, 0.0, end_ids=frozenset([0])) for s in asked]
        serve(model, made, Orca(), rows=3, lookahead=int(kernel is True))
        found.append([inference.ids for inference in made])
        texts = [b"".join(map(tokenizer.token_bytes, ids[3:-1])).decode() for ids in found[-1]]
        assert texts[2] in ("true", "false")
        assert re.fullmatch("[a-f]{4}", texts[3])
    assert found[0] == found[1]
