"""The same request gives the same tokens in every mode, whatever it is batched with, by the path of
a CPU and by that of a GPU (torch's operators on a CPU: nothing is read before its result is asked
for), and with an iteration in flight, which starts before the previous one is read.

In float64, so that what a row is batched with changes no token.
"""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from generate.modes import ModeName, make_ledger
from model import DynamicBatchingServerModel, LoadOptions, ServerModel, load_model
from runtime.executor import Executor
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from seams import Constraint, Sampling
from tests.examples import examples
from tests.model.peer import LogitsTap
from tests.model.served import POLICIES, VOCAB, serve, small
from tests.recalling import recall
from text.tokenizer import Tokenizer

BLOCKS = 24
COMMON = [(5 * n + 1) % VOCAB for n in range(32)]  # two blocks that prompts may share
PENALTIES = Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2)
CONSTRAINTS = [
    None, None,
    *(Constraint("regex", of) for of in ("(ab|cd){2} fixed text [0-9]", "[a-f]{4}", "true|false")),
]  # fmt: skip
PATHS: dict[str, bool | None] = {"CPU": None, "GPU": False}


@pytest.fixture(scope="module")
def models() -> dict[tuple[str, ModeName], Executor]:
    table = {token: bytes([token + 30]) for token in range(1, VOCAB)} | {0: b"<end>"}
    tokenizer = Tokenizer(lambda text: [byte - 30 for byte in text.encode()], table, [0])
    found: dict[tuple[str, ModeName], Executor] = {}
    for path, kernel in PATHS.items():
        rectangle, dynamic = (
            small(kind, torch.float64, BLOCKS, kernel=kernel)
            for kind in (ServerModel, DynamicBatchingServerModel)
        )
        found |= {(path, "nobatch"): rectangle, (path, "static"): rectangle}
        found[path, "dynamic"] = dynamic
    for model in found.values():
        model.grammars = Grammars(lambda: tokenizer)
    return found


def poison(model: Executor, ledger: Ledger) -> None:
    """What was given back is no number, and would spread to whatever reads it."""
    model.pool.keys[:, ledger._free] = torch.nan
    model.pool.values[:, ledger._free] = torch.nan


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
    constraint=st.sampled_from(CONSTRAINTS),
)
asked = st.tuples(
    st.builds(
        lambda shared, own: COMMON[:shared] + own,
        st.sampled_from([0, 20, 32]),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    ),
    st.integers(1, 12),
    samplings,
    st.integers(0, 8),  # the step at which it arrives
)


@pytest.mark.parametrize("path", PATHS)
@given(
    work=st.lists(asked, min_size=1, max_size=6),
    left=st.dictionaries(st.integers(0, 5), st.integers(8, 14), max_size=2),
    limit=st.integers(1, 4),
    of=st.sampled_from(POLICIES),
    blocks=st.none() | st.integers(6, 9),
    drafts=st.sampled_from([0, 2, 4]),
)
@example([([n] * 14, 12, PENALTIES, 0) for n in range(4)], {}, 4, POLICIES[2], 6, 0)  # preempts
@examples(14, 100)
def test_a_request_gets_the_tokens_and_logprobs_that_it_gets_alone(  # type: ignore[no-untyped-def]
    models, path, work, left, limit, of, blocks, drafts
) -> None:
    """Over all settings, constraints, drafts, preemptions, departures and prefix hits. `left`: the
    requests that leave, each with the step at which it does, perhaps with fewer tokens."""
    mode, policy = of
    model, alone_by = models[path, mode], models["CPU", "dynamic"]

    def requests() -> list[Inference]:
        return [Inference(*job, end_ids=frozenset((0, *job[2].end_ids))) for job in work]

    alone = requests()
    for request in alone:
        serve(alone_by, [request], Orca(), Ledger(BLOCKS, alone_by.block_tokens))
    for lookahead in (0, 1):
        together, ledger = requests(), make_ledger(mode, model)
        if mode == "dynamic":
            ledger = Ledger(
                blocks or BLOCKS, model.block_tokens, prefix_caching=True,
                growth_tokens=None if blocks is None else 2,
            )  # fmt: skip
        leaving = {at: [together[i] for i in left if left[i] == at and i < len(work)]
                   for at in left.values()}  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            recall([request.ids for request in alone], patch, VOCAB)
            serve(
                model, together, policy, ledger,
                mode=mode, rows=limit, lookahead=lookahead, leaving=leaving,
                drafts=drafts if mode == "dynamic" else 0,
                before=partial(poison, model, ledger) if mode == "dynamic" else lambda: None,
            )  # fmt: skip
        for i, (expected, found) in enumerate(zip(alone, together, strict=True)):
            assert not found.error
            pairs = list(zip(expected.ids, found.ids, strict=i not in left))
            assert all(a == b for a, b in pairs)
            for a, b in zip(expected.logprobs, found.logprobs, strict=i not in left):
                assert a.token == b.token
                assert abs(a.logprob - b.logprob) < 1e-5
            if i not in left:
                assert expected.end == found.end
                assert len(expected.prompt_logprobs) == len(found.prompt_logprobs)
            if (constraint := found.sampling.constraint) and found.end == "stop":
                said = bytes(token + 30 for token in found.ids[found.prompt_tokens :] if token)
                assert found.sampling.end_ids or re.fullmatch(constraint.text, said.decode())


def test_in_dynamic_mode_logits_are_those_of_running_alone_to_the_last_bit() -> None:
    """By the kernels for CPUs."""
    model = load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, max_batch_size=8))
    if not model.info.batch_invariant:
        pytest.skip("oneDNN or torch computes the linear layers here")
    taps = []
    for together in (False, True):
        work = [
            Inference(list(range(n, 3 * n)), 8, Sampling(seed=n, temperature=n % 2), n)
            for n in range(1, 40, 3)
        ]
        with pytest.MonkeyPatch.context() as patch:
            taps.append(LogitsTap(patch))
            for one in [work] if together else [[request] for request in work]:
                serve(model, one, Orca(), rows=8)
    alone, batched = (tap.after for tap in taps)
    assert len(alone) == len(batched) == 8 * len(work)
    for text, logits in alone.items():
        assert torch.equal(batched[text], logits)
