"""What runs on a GPU, on a CPU: Triton interprets, graphs are called instead of replayed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from benchmarks.bare import Job, run_bare
from engine.inference import Inference
from engine.speculation import Speculation
from generate.modes import ModeName
from model import DynamicBatchingServerModel, ServerModel
from models.gpt2 import GPT, GPTConfig, init_weights
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from seams import Policy
from tests.model.served import serve
from tests.recalling import recall
from tests.scheduling.law import Law
from text.tokenizer import Tokenizer

VOCAB = 97
CONFIG = GPTConfig(vocab_size=VOCAB, context=64, n_layer=1, n_head=2, n_embd=32)
WORK = [Job([(7 * i + j) % VOCAB for j in range(3 + 9 * i)], 2 + i) for i in range(4)]


def make(mode: ModeName, *, kernel: bool | None, graphs: bool = False) -> Executor:
    network = GPT(CONFIG)
    init_weights(network, 0)
    network.eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8)  # logits that differ
    kind = DynamicBatchingServerModel if mode == "dynamic" else ServerModel
    model = kind(network, torch.float32, "small", kernel=kernel)
    model.allocate(40)
    if graphs:
        assert model.gpu is not None
        model.gpu.record_graphs(5)
    return model


ORCA: tuple[ModeName, Callable[[], Policy]] = ("dynamic", Orca)
CHUNKS: tuple[ModeName, Callable[[], Policy]] = ("dynamic", lambda: StallFree(token_budget=16))
STATIC: tuple[ModeName, Callable[[], Policy]] = ("static", lambda: Static(max_wait_s=0.0))


@pytest.mark.parametrize(
    ("of", "made"),
    [
        *((of, {"kernel": False}) for of in (ORCA, CHUNKS, STATIC)),
        (ORCA, {"kernel": True}),
        (CHUNKS, {"kernel": True, "graphs": True}),
    ],
    ids=["orca", "chunks", "static", "kernel", "graphs, chunks"],
)
def test_the_tokens_are_those_of_the_cpus_path(
    of: tuple[ModeName, Callable[[], Policy]], made: dict[str, bool]
) -> None:
    """With graphs, every iteration is one, whatever it mixes, and one may be in flight."""
    mode, policy = of
    expected = run_bare(make(mode, kernel=None), policy(), mode, WORK, 3).outputs
    model = make(mode, **made)
    graphs = None if model.gpu is None else model.gpu.graphs
    before = 0 if graphs is None else graphs.replayed
    found = run_bare(model, policy(), mode, WORK, 3, lookahead=int(graphs is not None))
    assert found.outputs == expected
    iterations = found.tally.iterations
    assert any(record.num_tokens > record.batch_size for record in iterations)
    assert graphs is None or graphs.replayed - before == len(iterations)


@pytest.mark.parametrize(
    ("made", "lookahead"),
    [
        ({"kernel": False}, 0),
        ({"kernel": False}, 1),
        ({"kernel": True, "graphs": True}, 1),
    ],
    ids=["operators", "operators, in flight", "graphs"],
)
def test_tokens_with_drafts_are_those_of_the_cpus_path_without(
    made: dict[str, bool], lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside prompts, and where all rows decode."""
    work = [Job([(7 * i + j) % VOCAB for j in range(3 + 9 * i)], 10) for i in range(2)]
    expected = run_bare(make("dynamic", kernel=None), Orca(), "dynamic", work, 3).outputs
    model = make("dynamic", **made)
    graphs = None if model.gpu is None else model.gpu.graphs
    before = 0 if graphs is None else graphs.replayed
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
    assert graphs is None or graphs.replayed - before == len(iterations)


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
        model = make("dynamic", kernel=kernel)
        model.grammars = Grammars(lambda: tokenizer)
        made = [Inference([5, 6, 7], 14, s, 0.0, end_ids=frozenset([0])) for s in asked]
        serve(model, made, Orca(), rows=3, lookahead=int(kernel is True))
        found.append([inference.ids for inference in made])
        texts = [b"".join(map(tokenizer.token_bytes, ids[3:-1])).decode() for ids in found[-1]]
        assert texts[2] in ("true", "false")
        assert re.fullmatch("[a-f]{4}", texts[3])
    assert found[0] == found[1]
