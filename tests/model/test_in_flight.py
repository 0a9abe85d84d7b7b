"""An iteration that starts before the previous one is read: the newest tokens are on the device
only. The GPU's path on a CPU, by torch's operators: nothing is read before its result is asked for.

In float64, so that what a row is batched with changes no token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runtime.executor
import runtime.iteration
from batching import BatchingManager
from benchmarks.bare import Tally
from engine.blocks import Ledger
from engine.inference import Inference
from engine.iteration import Iteration
from generate.modes import MODES, ModeName, make_ledger
from model import DynamicBatchingServerModel, ServerModel
from models.gpt2 import GPT, GPTConfig, init_weights
from requested import Sampling
from runtime.executor import Executor
from runtime.iteration import Launched
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from seams import Opening, Outcome, Policy, Step

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


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, the iteration at which it arrives, and the one at which its client leaves."""

    prompt: list[int]
    tokens: int
    sampling: Sampling
    arrival: int
    leaves: int | None


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
asked = st.builds(
    Asked,
    prompt=st.builds(
        lambda shared, own: COMMON[:shared] + own,
        st.sampled_from([0, 20, 32]),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    ),
    tokens=st.integers(1, 8),
    sampling=samplings,
    arrival=st.integers(0, 8),
    leaves=st.none() | st.integers(0, 12),
)


@dataclass
class Played:
    requests: list[Inference]
    preemptions: int = 0
    most_in_flight: int = 0
    departed: set[int] = field(default_factory=set)


def play(
    model: Executor,
    mode: ModeName,
    policy: Policy,
    work: Sequence[Asked],
    limit: int,
    ledger: Ledger,
    lookahead: int,
) -> Played:
    """Steps of a virtual clock; each begins an iteration, and finishes one if enough are in
    flight."""
    manager = BatchingManager(
        policy, Tally(), max_batch_size=limit, max_waiting=100, lookahead=lookahead
    )
    manager.serve(model, ledger)
    requests = [
        Inference(
            of.prompt, of.tokens, of.sampling, of.arrival, end_ids=frozenset(of.sampling.end_ids)
        )
        for of in work
    ]
    played = Played(requests)
    for now in range(1000):
        for i, of in enumerate(work):
            if of.arrival == now:
                manager.enqueue(requests[i])
            if of.leaves is not None and of.arrival + of.leaves == now and not requests[i].ended:
                manager.cancel(requests[i])
                played.departed.add(i)
        begun = manager.begin(float(now), MODES[mode].lay_out)
        played.most_in_flight = max(played.most_in_flight, len(manager.in_flight))
        if manager.in_flight and (
            not isinstance(begun, Iteration) or len(manager.in_flight) > lookahead
        ):
            landed = manager.in_flight[0].outcome()
            assert isinstance(landed, Outcome), landed
            manager.finish(float(now), landed)
        elif not manager.in_flight and all(of.arrival < now for of in work):
            break
    assert manager.memory.used == 0
    played.preemptions = sum(request.num_preemptions for request in requests)
    return played


def ledger_of(model: Executor, mode: ModeName, blocks: int | None) -> Ledger:
    if mode != "dynamic":
        return make_ledger(mode, model)
    growth = None if blocks is None else 2
    return Ledger(blocks or BLOCKS, model.block_tokens, growth_tokens=growth, prefix_caching=True)


@given(
    work=st.lists(asked, min_size=1, max_size=6),
    limit=st.integers(1, 4),
    of=st.sampled_from(POLICIES),
    blocks=st.none() | st.integers(6, 9),
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_with_an_iteration_in_flight_tokens_and_logprobs_are_the_same(
    models, work, limit, of, blocks
):  # type: ignore[no-untyped-def]
    """Over all settings, preemptions, departures and prefix hits. Who leaves may have received
    more tokens in one of the two."""
    mode, policy = of
    model = models[mode]
    plain, ahead = (
        play(model, mode, policy(), work, limit, ledger_of(model, mode, blocks), lookahead)
        for lookahead in (0, 1)
    )
    for i, (expected, found) in enumerate(zip(plain.requests, ahead.requests, strict=True)):
        assert not expected.error
        assert not found.error
        of_prompt = [(s.token, s.logprob) for s in found.prompt_logprobs]
        pairs = list(zip(expected.ids, found.ids, strict=i not in ahead.departed | plain.departed))
        assert all(a == b for a, b in pairs)
        for a, b in zip(expected.logprobs, found.logprobs, strict=False):
            assert a.token == b.token
            assert abs(a.logprob - b.logprob) < 1e-5
        if i not in ahead.departed | plain.departed:
            assert expected.end == found.end
            assert len(expected.logprobs) == len(found.logprobs)
            assert len(expected.prompt_logprobs) == len(of_prompt)


def test_the_iterations_of_the_test_above_do_overlap_and_preempt(models) -> None:  # type: ignore[no-untyped-def]
    work = [Asked([n] * 14, 12, PENALTIES, 0, None) for n in range(4)]
    model = models["dynamic"]
    plain, ahead = (
        play(model, "dynamic", Orca(), work, 4, ledger_of(model, "dynamic", 6), lookahead)
        for lookahead in (0, 1)
    )
    assert plain.most_in_flight == 1
    assert ahead.most_in_flight == 2
    assert ahead.preemptions > 0
    assert [r.ids for r in ahead.requests] == [r.ids for r in plain.requests]


@pytest.mark.parametrize(
    ("sampling", "waits"),
    [
        (Sampling(temperature=0), []),
        (Sampling(top_p=0.9, min_tokens=3, end_ids=(4,), logprobs=2), []),
        # staged by ids, one of which is in flight; from then on the device appends
        (PENALTIES, ["changed"]),
    ],
    ids=["greedy", "top_p, min_tokens, logprobs", "penalties"],
)
def test_a_start_waits_for_the_previous_iteration_only_to_stage_penalties_of_another_batch(
    sampling: Sampling, waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(DynamicBatchingServerModel)
    reads: list[str] = []
    doing = "reading"
    read = Launched.read

    def noted(launched: Launched, after_s: float) -> Outcome:
        reads.append(doing)
        return read(launched, after_s)

    monkeypatch.setattr(Launched, "read", noted)
    model.open([Opening(i, [7, 8, 9], 3, sampling) for i in range(2)])
    first = model.start([Step(0, 0, 3, True, (0,)), Step(1, 0, 3, True, (1,))], ())
    doing = "same rows"
    second = model.start([Step(0, 3, 1, True, ()), Step(1, 3, 1, True, ())], ())
    doing = "reading"
    first.result()
    doing = "changed"
    third = model.start([Step(1, 4, 1, True, ())], (0,))
    doing = "reading"
    second.result()
    third.result()
    assert [each for each in reads if each != "reading"] == waits


def test_the_durations_of_iterations_that_overlap_count_no_time_twice(
    models, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    ticks = itertools.count(1.0)
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(runtime.iteration, "time", clock)
    monkeypatch.setattr(runtime.executor, "time", clock)
    model = models["dynamic"]
    model.forget()
    model.open([Opening(0, COMMON[:6], 6, Sampling(temperature=0))])
    begin_s = next(ticks)
    pending = [model.start([Step(0, 0, 6, True, (0,))], ())]
    for at in range(6, 10):
        pending.append(model.start([Step(0, at, 1, True, ())], ()))
        pending[-2].result()
    pending[-1].result()
    durations_s = [each.result().duration_s for each in pending]
    assert sum(durations_s) < next(ticks) - begin_s
    model.forget()


def test_an_iteration_in_flight_may_draw_nothing(models) -> None:  # type: ignore[no-untyped-def]
    """A chunk of one prompt follows a decode of another: the token is found when it is wanted."""
    model = models["dynamic"]
    model.forget()
    model.open([Opening(i, COMMON[:6], 6, Sampling(temperature=0)) for i in range(2)])
    drawn = model.start([Step(0, 0, 6, True, (0,))], ())
    chunk = model.start([Step(1, 0, 3, False, (1,))], ())
    both = model.start([Step(0, 6, 1, True, ()), Step(1, 3, 3, True, ())], ())
    outcomes = [pending.result() for pending in (drawn, chunk, both)]
    model.forget()
    (token,) = outcomes[0].tokens[0]
    assert outcomes[1].tokens == [[]]
    model.open([Opening(2, [*COMMON[:6], token], 6, Sampling(temperature=0))])
    again = model.start([Step(2, 0, 7, True, (2,))], ()).result()
    assert outcomes[2].tokens == [again.tokens[0], [token]]
    model.forget()
