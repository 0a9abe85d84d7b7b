"""What runs on a GPU, on a CPU: Triton interprets, graphs are called instead of replayed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gpt.sampling
from benchmarks.bare import Job, run_bare
from generate.modes import LAYOUTS, Mode
from gpt.executor import Executor
from gpt.network import GPT, GPTConfig, init_weights
from model import DynamicBatchingServerModel, ServerModel
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from seams import Policy, Sampling
from tests.bare import Bare

VOCAB = 97
CONFIG = GPTConfig(vocab_size=VOCAB, context=64, n_layer=2, n_head=2, n_embd=32)
WORK = [Job([(7 * i + j) % VOCAB for j in range(3 + 9 * i)], 2 + i) for i in range(4)]


def make(mode: Mode, *, kernel: bool | None, graphs: bool = False) -> Executor:
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


POLICIES: list[tuple[Mode, Callable[[], Policy]]] = [
    ("dynamic", Orca),
    ("dynamic", lambda: StallFree(token_budget=16)),
    ("static", lambda: Static(max_wait_s=0.0)),
]


@pytest.mark.parametrize(("mode", "policy"), POLICIES)
@pytest.mark.parametrize(
    "made", [{"kernel": True}, {"kernel": False}, {"kernel": True, "graphs": True}], ids=str
)
def test_the_tokens_are_those_of_the_cpus_path(
    mode: Mode, policy: Callable[[], Policy], made: dict[str, bool]
) -> None:
    expected = run_bare(make(mode, kernel=None), policy(), mode, WORK, 3).outputs
    assert run_bare(make(mode, **made), policy(), mode, WORK, 3).outputs == expected


def test_logprobs_are_those_of_the_cpus_path() -> None:
    asked = [
        Sampling(temperature=0, logprobs=3, prompt_logprobs=2),
        Sampling(temperature=0),
        Sampling(temperature=0, logprobs=1),
    ]
    prompts = [list(range(20)), [5, 6], [9]]
    found = []
    for kernel in (None, True):
        bare = Bare(make("dynamic", kernel=kernel), LAYOUTS["dynamic"])
        rows = bare.open(prompts, 4, asked)
        found.append([bare.advance(rows, [12, 2, 1]), bare.advance(rows), bare.advance(rows)])
    for expected, actual in zip(*found, strict=True):
        assert actual.tokens == expected.tokens
        assert actual.logprobs.keys() == expected.logprobs.keys()
        assert actual.prompt_logprobs.keys() == expected.prompt_logprobs.keys()
        pairs = [(expected.logprobs[i], actual.logprobs[i]) for i in expected.logprobs]
        for i, (first, words) in expected.prompt_logprobs.items():
            assert actual.prompt_logprobs[i][0] == first
            pairs.append((words, actual.prompt_logprobs[i][1]))
        for theirs, ours in pairs:
            for a, b in zip(theirs, ours, strict=True):
                assert a.token == b.token
                assert abs(a.logprob - b.logprob) < 1e-4
                assert [id for id, _ in a.top] == [id for id, _ in b.top]


def test_an_iteration_is_read_when_its_result_is_asked_for_or_the_next_one_starts() -> None:
    model = make("dynamic", kernel=True)
    model.pool.keys.fill_(torch.nan)  # memory that was never written holds anything
    model.pool.values.fill_(torch.nan)
    bare = Bare(model, LAYOUTS["dynamic"])
    rows = bare.open([[1, 2, 3], [4, 5]], 6)
    tokens = [bare.advance(rows).tokens for _ in range(3)]
    assert all(0 <= token < VOCAB for step in tokens for (token,) in step)


class Operators(TorchDispatchMode):
    """Names of the operators that were called, views and allocations left out."""

    FREE = ("empty", "detach", "alias", "_unsafe_view")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(self.FREE):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


TOP_P = Sampling(top_p=0.9)
PENALTIES = Sampling(repetition_penalty=1.2, presence_penalty=0.5)
BIAS = Sampling(logit_bias=((3, 1.0),))
ALL = Sampling(top_p=0.9, repetition_penalty=1.2, presence_penalty=0.5, logit_bias=((3, 1.0),))


def decode_operators(rows: int, sampling: Sampling, layers: int = 1) -> list[str]:
    network = GPT(GPTConfig(VOCAB, 64, layers, 1, 16)).eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=True)
    model.allocate(rows)
    bare = Bare(model, LAYOUTS["dynamic"])
    sequences = bare.open([[1]] * rows, 4, [sampling] * rows)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(gpt.sampling, "sampling_library", lambda: None)  # a GPU has no such kernel
        # inference mode hides operators
        patch.setattr(Executor, "start", Executor.start.__wrapped__)  # type: ignore[attr-defined]
        bare.advance(sequences)  # stages what the batch asks for
        with Operators() as called:
            bare.advance(sequences)
    return called.names


def test_a_decode_takes_as_many_operators_for_32_rows_as_for_4() -> None:
    """At most 8 a layer, and a fixed number around the layers."""
    few = decode_operators(4, ALL)
    assert decode_operators(32, ALL) == few
    assert len(decode_operators(4, ALL, layers=2)) - len(few) <= 8
    plain, cut, biased, penalised = (
        len(decode_operators(4, asked)) for asked in (Sampling(), TOP_P, BIAS, PENALTIES)
    )
    assert plain == cut < biased < penalised < len(few)
