"""Constraints in a batch: finished answers are what was asked for, forced tokens change nothing,
and rows without a constraint do not notice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from benchmarks.bare import Tally
from engine.inference import Inference
from generate.modes import MODES, ModeName
from model import LoadOptions, load_model
from models.names import EMBEDDED
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Grammars
from scheduling.policies.orca import Orca
from seams import Policy
from tests.model.served import POLICIES, answers, serve
from tests.runtime.grammar.conftest import text_of
from text.tokenizer import Tokenizer

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


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer) -> dict[ModeName, Executor]:
    made = {}
    for mode in MODES:
        asked = LoadOptions(mode, EMBEDDED, "cpu", "float32", 0, max_batch_size=8)
        made[mode] = load_model(asked)
        made[mode].grammars = Grammars(lambda: tokenizer)
    return made


def generated(
    model: Executor,
    tokenizer: Tokenizer,
    asked: Sequence[Sampling],
    most: int = 80,
    *,
    mode: ModeName = "dynamic",
    policy: Policy | None = None,
) -> tuple[list[Inference], Tally]:
    ids = tokenizer.encode("def answer():\n    return ")
    inferences = [Inference(ids, most, s, 0.0, end_ids=tokenizer.end_ids) for s in asked]
    return inferences, serve(model, inferences, policy or Orca(), mode=mode, rows=8)


ASKED = [
    Sampling(seed=1, constraint=PERSON),
    Sampling(seed=2),
    Sampling(temperature=0.0, constraint=PERSON),
    Sampling(seed=3, top_k=5, top_p=0.9, constraint=PERSON),
    Sampling(seed=4, repetition_penalty=1.3, constraint=Constraint("regex", "(ab|cd){4,9}")),
    Sampling(temperature=0.0),
    Sampling(seed=5, logit_bias=((65, 5.0),), constraint=Constraint("lark", 'start: "x" | "yz"')),
    Sampling(seed=6, min_tokens=3, constraint=Constraint("regex", "a{1,9}")),
]


@pytest.mark.parametrize(("mode", "policy"), POLICIES)
def test_answers_are_the_same_in_every_mode(
    mode: ModeName, policy: Policy, models: dict[ModeName, Executor], tokenizer: Tokenizer
) -> None:
    (alone,) = zip(
        *(generated(models["dynamic"], tokenizer, [sampling])[0] for sampling in ASKED), strict=True
    )
    together, tally = generated(models[mode], tokenizer, ASKED, mode=mode, policy=policy)
    assert answers(together) == answers(alone)
    for i in (0, 2, 3):
        assert together[i].end == "stop"
        value = json.loads(text_of(tokenizer, answers(together)[i]))
        Draft202012Validator(json.loads(PERSON.text)).validate(value)
    assert any(record.num_generated > record.num_drawn for record in tally.iterations)


def test_forced_tokens_are_the_tokens_that_are_drawn_one_by_one(
    models: dict[ModeName, Executor], tokenizer: Tokenizer
) -> None:
    """A request that wants logprobs draws each."""
    asked = [replace(ASKED[0], seed=seed) for seed in range(8)]
    forced, quick = generated(models["dynamic"], tokenizer, asked)
    drawn, slow = generated(models["dynamic"], tokenizer, [replace(s, logprobs=2) for s in asked])
    assert answers(forced) == answers(drawn)
    assert len(quick.iterations) < len(slow.iterations)
    assert all(record.num_generated == record.num_drawn for record in slow.iterations)
    assert [len(i.logprobs) for i in drawn] == [len(ids) for ids in answers(drawn)]


def test_a_row_that_fails_ends_alone(
    models: dict[ModeName, Executor], tokenizer: Tokenizer
) -> None:
    model = models["dynamic"]
    # valid, and too much for the limits of a step
    hard = Constraint("regex", "(?:[a-z]{1,40}|[b-z]{2,50}|[c-z]{3,60}){1,200}z{500}")
    wrong = Constraint("lark", "start: missing")
    asked = [*ASKED[:3], Sampling(constraint=wrong), Sampling(seed=9, constraint=hard)]
    expected, _ = generated(model, tokenizer, ASKED[:3])
    found, _ = generated(model, tokenizer, asked)
    assert answers(found)[:3] == answers(expected)
    assert (found[3].end, found[3].cause) == ("failed", "constraint")
    assert "missing" in (found[3].error or "")
    assert len(found[3].ids) == found[3].prompt_tokens
