"""An iteration that starts before the previous one is read: the newest tokens are on the device
only. The GPU's path on a CPU, by torch's operators: nothing is read before its result is asked for.

In float64, so that what a row is batched with changes no token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from generate.modes import ModeName, make_ledger
from model import DynamicBatchingServerModel, ServerModel
from models.gpt2 import GPT, GPTConfig, init_weights
from requested import Sampling
from runtime.executor import Executor
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from seams import Policy
from tests.model.served import serve

VOCAB, BLOCKS = 97, 24
CONFIG = GPTConfig(vocab_size=VOCAB, context=64, n_layer=1, n_head=2, n_embd=16)
COMMON = [(5 * n + 1) % VOCAB for n in range(32)]  # two blocks that prompts may share
PENALTIES = Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2)


def make(kind: type[Executor]) -> Executor:
    network = GPT(CONFIG)
    init_weights(network, 0)
    network.eval().requires_grad_(False).double()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.mul_(8)  # logits that differ
    model = kind(network, torch.float64, "small", kernel=False)
    model.allocate(BLOCKS)
    return model


@pytest.fixture(scope="module")
def models() -> dict[ModeName, Executor]:
    rectangle = make(ServerModel)
    return {
        "nobatch": rectangle,
        "static": rectangle,
        "dynamic": make(DynamicBatchingServerModel),
    }


POLICIES: list[tuple[ModeName, Callable[[], Policy]]] = [
    ("nobatch", NoBatch),
    ("static", lambda: Static(max_wait_s=0.0)),
    ("dynamic", Orca),
    ("dynamic", lambda: StallFree(token_budget=16)),
]


Asked = tuple[list[int], int, Sampling, int]  # with the step at which it arrives


samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([None, 20]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.01]),
    typical_p=st.sampled_from([1.0, 0.95]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.2]),
    logit_bias=st.sampled_from([(), ((3, 2.0),)]),
    min_tokens=st.integers(0, 4),
    end_ids=st.sampled_from([(), tuple(range(0, VOCAB, 9))]),
    logprobs=st.sampled_from([None, 2]),
    prompt_logprobs=st.sampled_from([None, 1]),
)
asked = st.tuples(
    st.builds(
        lambda shared, own: COMMON[:shared] + own,
        st.sampled_from([0, 20, 32]),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    ),
    st.integers(1, 8),
    samplings,
    st.integers(0, 8),
)


def play(
    model: Executor,
    mode: ModeName,
    policy: Policy,
    work: Sequence[Asked],
    left: Mapping[int, int],
    limit: int,
    ledger: Ledger,
    lookahead: int,
) -> list[Inference]:
    """`left`: the requests that leave, each with the step at which it does."""
    requests = [
        Inference(ids, n, sampling, arrival, end_ids=frozenset(sampling.end_ids))
        for ids, n, sampling, arrival in work
    ]
    leaving = {step: [requests[i] for i in left if left[i] == step] for step in left.values()}
    serve(
        model, requests, policy, ledger,
        mode=mode, rows=limit, lookahead=lookahead, leaving=leaving,
    )  # fmt: skip
    assert not any(request.error for request in requests)
    return requests


def ledger_of(model: Executor, mode: ModeName, blocks: int | None) -> Ledger:
    if mode != "dynamic":
        return make_ledger(mode, model)
    growth = None if blocks is None else 2
    return Ledger(blocks or BLOCKS, model.block_tokens, growth_tokens=growth, prefix_caching=True)


@given(
    work=st.lists(asked, min_size=1, max_size=6),
    left=st.dictionaries(st.integers(0, 5), st.integers(8, 14), max_size=2),
    limit=st.integers(1, 4),
    of=st.sampled_from(POLICIES),
    blocks=st.none() | st.integers(6, 9),
)
@example([([n] * 14, 12, PENALTIES, 0) for n in range(4)], {}, 4, POLICIES[2], 6)  # preempts
@settings(max_examples=10)
def test_with_an_iteration_in_flight_tokens_and_logprobs_are_the_same(  # type: ignore[no-untyped-def]
    models, work, left, limit, of, blocks
) -> None:
    """Over all settings, preemptions, departures and prefix hits. Who leaves may have received
    more tokens in one of the two."""
    mode, policy = of
    model, left = models[mode], {i: at for i, at in left.items() if i < len(work)}
    plain, ahead = (
        play(model, mode, policy(), work, left, limit, ledger_of(model, mode, blocks), lookahead)
        for lookahead in (0, 1)
    )
    for i, (expected, found) in enumerate(zip(plain, ahead, strict=True)):
        pairs = list(zip(expected.ids, found.ids, strict=i not in left))
        assert all(a == b for a, b in pairs)
        for a, b in zip(expected.logprobs, found.logprobs, strict=i not in left):
            assert a.token == b.token
            assert abs(a.logprob - b.logprob) < 1e-5
        if i not in left:
            assert expected.end == found.end
            assert len(expected.prompt_logprobs) == len(found.prompt_logprobs)
