"""On the real model and the engine: answers with drafts, forced tokens included, are those without,
to the last bit, whatever is sampled, constrained, preempted, shared or ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from model import LoadOptions, load_model
from models.names import EMBEDDED
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.constraints import of_choice
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from tests.examples import examples
from tests.model.served import serve
from tests.model.test_constraints import PERSON
from tests.recalling import recall
from text.tokenizer import Tokenizer

MOST = 8
PROMPTS = ["def answer():\n    return ", "abab abab abab ", "x"]
# PERSON and the last force much, and leave little to draft
CONSTRAINTS = [
    None,
    PERSON,
    Constraint("regex", "([a-f ]{9} a fixed text ){2,9}end"),
    Constraint("lark", 'start: ("a" | " b")+ " and " /[0-9]{9,30}/ "."'),
    Constraint("regex", "(ab|cd){4,19}"),
    of_choice(["yes", "yesterday", "no"]),
]
Job = tuple[str, int, Sampling]


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Executor:
    model = load_model(LoadOptions("dynamic", EMBEDDED, "cpu", "float32", 0, 8, speculate=MOST))
    if not model.info.batch_invariant:
        pytest.skip("no variant of the linear layers is batch invariant here")
    model.grammars = Grammars(lambda: tokenizer)
    return model


samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.4, 1.0]),
    top_k=st.sampled_from([None, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    min_tokens=st.sampled_from([0, 0, 9]),
    end_ids=st.just((0,)),
    logprobs=st.sampled_from([None, None, 2]),
    constraint=st.sampled_from(CONSTRAINTS),
)
jobs = st.tuples(st.sampled_from(PROMPTS), st.integers(1, 40), samplings)


def run(
    model: Executor, tokenizer: Tokenizer, work: Sequence[Job], most: int, ledger: Ledger
) -> list[Inference]:
    inferences = [
        Inference(tokenizer.encode(text), n, sampling, 0.0, end_ids=tokenizer.end_ids)
        for text, n, sampling in work
    ]
    serve(model, inferences, Orca(), ledger, drafts=most)
    assert not any(inference.error for inference in inferences)
    return inferences


def what_clients_see(inference: Inference) -> tuple[Any, ...]:
    return inference.ids, inference.end, inference.logprobs


@given(work=st.lists(jobs, min_size=1, max_size=5), most=st.integers(1, MOST), little=st.booleans())
@examples(15, 400)
def test_answers_are_the_same_with_drafts(
    model: Executor, tokenizer: Tokenizer, work: list[Job], most: int, little: bool
) -> None:
    """In little memory prefixes are shared and requests preempted. What is computed again has its
    keys from another kernel, so logprobs may differ slightly."""
    longest = max(-(-(len(tokenizer.encode(text)) + n) // 16) for text, n, _ in work)

    def ledger() -> Ledger:
        if not little:
            return Ledger(200, 16)
        return Ledger(longest + 1, 16, growth_tokens=2, prefix_caching=True)

    plain = run(model, tokenizer, work, 0, ledger())
    with pytest.MonkeyPatch.context() as patch:
        recall([inference.ids for inference in plain], patch, model.vocab_size)
        guessed = run(model, tokenizer, work, most, ledger())
    seen = 2 if little else 3
    assert [what_clients_see(i)[:seen] for i in guessed] == [
        what_clients_see(i)[:seen] for i in plain
    ]


@pytest.mark.parametrize(
    ("number", "logprobs"), [(0, None), (3, None), *((i, 1) for i in range(len(CONSTRAINTS)))]
)
def test_what_was_said_before_is_accepted(
    number: int, logprobs: int | None, model: Executor, tokenizer: Tokenizer
) -> None:
    """So the property above is about drafts that are accepted. With logprobs nothing is
    forced."""
    work = [
        (PROMPTS[0], 40, Sampling(seed=seed, constraint=CONSTRAINTS[number], logprobs=logprobs))
        for seed in range(3)
    ]
    plain = run(model, tokenizer, work, 0, Ledger(50, 16))
    with pytest.MonkeyPatch.context() as patch:
        recall([inference.ids for inference in plain], patch, model.vocab_size)
        guessed = run(model, tokenizer, work, MOST, Ledger(50, 16))
    assert list(map(what_clients_see, guessed)) == list(map(what_clients_see, plain))
    assert sum(inference.accepted_drafts for inference in guessed) > 0


def test_an_answer_that_was_expected_is_drafted_from_its_first_token(
    model: Executor, tokenizer: Tokenizer
) -> None:
    def answer(sampling: Sampling) -> Inference:
        (one,) = run(model, tokenizer, [(PROMPTS[0], 28, sampling)], MOST, Ledger(20, 16))
        return one

    sampling = Sampling(seed=3)
    alone = answer(sampling)
    expected = tuple(alone.ids[alone.prompt_tokens :])
    guessed = answer(replace(sampling, expected_ids=expected))
    assert guessed.ids == alone.ids
    # the first token is drawn behind the prompt; every further iteration has MOST drafts
    assert (guessed.accepted_drafts, guessed.rejected_drafts) == (27 // (MOST + 1) * MOST, 0)
    assert alone.accepted_drafts < guessed.accepted_drafts / 2
