"""Constraints and drafts on the embedded model: forced tokens and accepted drafts change nothing,
to the last bit, and a row that fails harms no other."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.bare import Tally
from engine.inference import Inference
from model import LoadOptions, load_model
from models.names import EMBEDDED
from runtime.executor import Executor
from runtime.grammar.constraints import of_choice, of_schema
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from seams import Constraint, Sampling
from tests.model.served import answers, serve
from tests.recalling import recall
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

MOST = 8  # drafts of a row
PERSON = of_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "colour": {"enum": ["red", "green"]},
        },
        "required": ["name", "age", "colour"],
        "additionalProperties": False,
    }
)
# PERSON and the second force much, and leave little to draft
CONSTRAINTS = [
    None,
    PERSON,
    Constraint("regex", "([a-f ]{9} a fixed text ){2,9}end"),
    Constraint("lark", 'start: ("a" | " b")+ " and " /[0-9]{9,30}/ "."'),
    Constraint("regex", "(ab|cd){4,19}"),
    of_choice(["yes", "yesterday", "no"]),
]


@functools.cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="module")
def model() -> Executor:
    model = load_model(LoadOptions("dynamic", EMBEDDED, "cpu", "float32", 0, 8, speculate=MOST))
    if not model.info.batch_invariant:
        pytest.skip("no variant of the linear layers is batch invariant here")
    model.grammars = Grammars(tokenizer)
    return model


def generated(
    model: Executor, asked: Sequence[Sampling], most: int = 40, drafts: int = 0
) -> tuple[list[Inference], Tally]:
    ids, ends = tokenizer().encode("def answer():\n    return "), tokenizer().end_ids
    inferences = [Inference(ids, most, sampling, 0.0, end_ids=ends) for sampling in asked]
    return inferences, serve(model, inferences, Orca(), rows=8, drafts=drafts)


def what_clients_see(inference: Inference) -> tuple[Any, ...]:
    assert not inference.error
    return inference.ids, inference.end, inference.logprobs


@pytest.mark.parametrize(
    ("constraint", "logprobs"),
    [(None, None), (CONSTRAINTS[3], None), *((constraint, 1) for constraint in CONSTRAINTS)],
)
def test_what_was_said_before_is_accepted(
    constraint: Constraint | None, logprobs: int | None, model: Executor
) -> None:
    """With logprobs nothing is forced."""
    asked = [Sampling(seed=n, constraint=constraint, logprobs=logprobs) for n in range(3)]
    plain, _ = generated(model, asked)
    with pytest.MonkeyPatch.context() as patch:
        recall([inference.ids for inference in plain], patch, model.vocab_size)
        guessed, _ = generated(model, asked, drafts=MOST)
    assert list(map(what_clients_see, guessed)) == list(map(what_clients_see, plain))
    assert sum(inference.accepted_drafts for inference in guessed) > 0


def test_an_answer_that_was_expected_is_drafted_from_its_first_token(model: Executor) -> None:
    (alone,), _ = generated(model, [Sampling(seed=3)], 28, MOST)
    expected = tuple(alone.ids[alone.prompt_tokens :])
    (guessed,), _ = generated(model, [Sampling(seed=3, expected_ids=expected)], 28, MOST)
    assert guessed.ids == alone.ids
    # the first token is drawn behind the prompt; every further iteration has MOST drafts
    assert (guessed.accepted_drafts, guessed.rejected_drafts) == (27 // (MOST + 1) * MOST, 0)
    assert alone.accepted_drafts < guessed.accepted_drafts / 2


def test_forced_tokens_are_the_tokens_that_are_drawn_one_by_one(model: Executor) -> None:
    """A request that wants logprobs draws each."""
    asked = [Sampling(seed=seed, constraint=PERSON) for seed in range(8)]
    forced, quick = generated(model, asked, 80)
    drawn, slow = generated(model, [replace(s, logprobs=2) for s in asked], 80)
    assert answers(forced) == answers(drawn)
    assert len(quick.iterations) < len(slow.iterations)
    assert all(record.num_generated == record.num_drawn for record in slow.iterations)
    assert [len(i.logprobs) for i in drawn] == [len(ids) for ids in answers(drawn)]


def test_a_row_that_fails_ends_alone(model: Executor) -> None:
    # valid, and too much for the limits of a step
    hard = Constraint("regex", "(?:[a-z]{1,40}|[b-z]{2,50}|[c-z]{3,60}){1,200}z{500}")
    wrong = Constraint("lark", "start: missing")
    asked = [Sampling(seed=1, constraint=PERSON), Sampling(seed=2)]
    expected, _ = generated(model, asked)
    asked += [Sampling(constraint=wrong), Sampling(seed=9, constraint=hard)]
    found, _ = generated(model, asked)
    assert answers(found)[:2] == answers(expected)
    assert (found[2].end, found[2].cause) == ("failed", "constraint")
    assert "missing" in (found[2].error or "")
    assert len(found[2].ids) == found[2].prompt_tokens
