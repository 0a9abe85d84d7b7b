"""Constraints in a batch: finished answers are what was asked for, forced tokens change nothing,
and rows without a constraint do not notice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from batching import BatchingManager
from benchmarks.bare import Tally
from engine.inference import Inference
from engine.iteration import Wait
from generate.modes import MODES, ModeName, make_ledger
from model import LoadOptions, load_model
from models.names import EMBEDDED
from requested import Constraint, Sampling
from runtime.executor import Executor
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Grammars
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from seams import Policy
from tests.runtime.grammar.schemas import schemas
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

PROMPT = "def answer():\n    return "
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
MODES_AND_POLICIES: list[tuple[ModeName, Policy]] = [
    ("nobatch", NoBatch()),
    ("static", Static(max_wait_s=0.0)),
    ("dynamic", Orca()),
    ("dynamic", StallFree(token_budget=24)),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


def loaded(mode: ModeName, tokenizer: Tokenizer) -> Executor:
    model = load_model(LoadOptions(mode, EMBEDDED, "cpu", "float32", 0, max_batch_size=8))
    model.grammars = Grammars(lambda: tokenizer)
    return model


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer) -> dict[ModeName, Executor]:
    return {mode: loaded(mode, tokenizer) for mode in MODES}


def generated(
    model: Executor,
    tokenizer: Tokenizer,
    asked: Sequence[Sampling],
    *,
    mode: ModeName = "dynamic",
    policy: Policy | None = None,
    most: int = 80,
    rows: int = 8,
    lookahead: int = 0,
    prompt: Sequence[int] | None = None,
) -> tuple[list[Inference], Tally]:
    tally = Tally()
    manager = BatchingManager(
        policy or Orca(), tally, max_batch_size=rows, max_waiting=len(asked), lookahead=lookahead
    )
    manager.serve(model, make_ledger(mode, model))
    ids = tokenizer.encode(PROMPT) if prompt is None else prompt
    inferences = [Inference(ids, most, s, 0.0, end_ids=tokenizer.end_ids) for s in asked]
    for inference in inferences:
        manager.enqueue(inference)
    while not isinstance(manager.step(MODES[mode].lay_out, lambda: 0.0), Wait):
        pass
    assert all(inference.ended for inference in inferences)
    return inferences, tally


def text_of(tokenizer: Tokenizer, inference: Inference) -> str:
    ids = inference.ids[inference.prompt_tokens :]
    return b"".join(
        tokenizer.token_bytes(token) for token in ids if token not in tokenizer.end_ids
    ).decode()


def answers(inferences: Sequence[Inference]) -> list[list[int]]:
    return [inference.ids[inference.prompt_tokens :] for inference in inferences]


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


@pytest.mark.parametrize(("mode", "policy"), MODES_AND_POLICIES)
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
        value = json.loads(text_of(tokenizer, together[i]))
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


def test_rows_without_a_constraint_are_unchanged_to_the_bit(
    models: dict[ModeName, Executor], tokenizer: Tokenizer
) -> None:
    """Logprobs say so: they are the logits'."""
    free = [Sampling(seed=seed, logprobs=5) for seed in range(4)]
    beside = [Sampling(seed=seed, logprobs=5, constraint=PERSON) for seed in range(4)]
    others = [Sampling(seed=seed, logprobs=5) for seed in range(10, 14)]
    with_masks, _ = generated(models["dynamic"], tokenizer, [*free, *beside], most=12)
    without, _ = generated(models["dynamic"], tokenizer, [*free, *others], most=12)
    assert answers(with_masks)[:4] == answers(without)[:4]
    assert [i.logprobs for i in with_masks[:4]] == [i.logprobs for i in without[:4]]


def test_no_more_than_max_tokens_are_generated(
    models: dict[ModeName, Executor], tokenizer: Tokenizer
) -> None:
    for most in range(1, 14):
        (inference,), _ = generated(models["dynamic"], tokenizer, ASKED[:1], most=most)
        assert (inference.end, len(inference.ids) - inference.prompt_tokens) == ("length", most)


def test_a_row_that_fails_ends_alone(
    models: dict[ModeName, Executor], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["dynamic"]
    # valid, and too much for the limits of a step
    hard = Constraint("regex", "(?:[a-z]{1,40}|[b-z]{2,50}|[c-z]{3,60}){1,200}z{500}")
    wrong = Constraint("lark", "start: missing")
    asked = [*ASKED[:3], Sampling(constraint=wrong), Sampling(seed=9, constraint=hard)]
    expected, _ = generated(model, tokenizer, ASKED[:3])
    found, _ = generated(model, tokenizer, asked)
    assert answers(found)[:3] == answers(expected)
    assert found[3].end == "failed"
    assert found[3].cause == "constraint"
    assert "missing" in (found[3].error or "")
    assert len(found[3].ids) == found[3].prompt_tokens


def test_a_model_without_grammars_fails_what_has_a_constraint(tokenizer: Tokenizer) -> None:
    model = load_model(LoadOptions("dynamic", EMBEDDED, "cpu", "float32", 0, max_batch_size=8))
    (bad, good), _ = generated(model, tokenizer, ASKED[:2], most=4)
    assert (bad.end, good.end) == ("failed", "length")


@pytest.mark.parametrize("number", range(0, 200, 7))
def test_finished_answers_of_a_model_are_values_of_their_schemas(
    number: int, models: dict[ModeName, Executor], tokenizer: Tokenizer
) -> None:
    group = schemas()[number : number + 7]
    check_answers(models["dynamic"], tokenizer, group, 120, tokenizer.encode(PROMPT))


def check_answers(
    model: Executor, tokenizer: Tokenizer, group: list[dict[str, object]], most: int,
    prompt: Sequence[int],
) -> int:  # fmt: skip
    """How many finished."""
    asked = [Sampling(seed=i, constraint=of_schema(schema)) for i, schema in enumerate(group)]
    inferences, _ = generated(
        model, tokenizer, asked, most=most, rows=min(len(group), 64), prompt=prompt
    )
    for schema, inference in zip(group, inferences, strict=True):
        assert inference.end in ("stop", "length"), inference.error
        if inference.end == "stop":
            value = json.loads(text_of(tokenizer, inference))
            Draft202012Validator(schema).validate(value)
    return sum(inference.end == "stop" for inference in inferences)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_finished_answers_of_smollm2_are_values_of_their_schemas(smollm2_file: Path) -> None:
    tokenizer = load_tokenizer(str(smollm2_file))
    model = load_model(
        LoadOptions("dynamic", str(smollm2_file), "cpu", "auto", 0, max_batch_size=64)
    )
    model.grammars = Grammars(lambda: tokenizer)
    prompt = tokenizer.encode("An example of the JSON value that is asked for:\n")
    assert check_answers(model, tokenizer, schemas(), 200, prompt) > 150
