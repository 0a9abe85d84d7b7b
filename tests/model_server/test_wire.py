"""What crosses between an engine and a model server arrives as it was sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

import requested
import seams
from model_server.wire import messages
from model_server.wire import model_pb2 as wire
from model_server.wire.__main__ import PROTO, ROOT, generate

ids = st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**20)
numbers = st.floats(allow_nan=False)
scores = st.builds(
    requested.TokenLogprobs, ids, numbers, st.lists(st.tuples(ids, numbers), max_size=3).map(tuple)
)
samplings = st.builds(
    requested.Sampling,
    seed=st.integers(0, 2**64 - 1),
    temperature=numbers,
    top_k=st.none() | counts,
    top_p=numbers,
    min_p=numbers,
    typical_p=numbers,
    repetition_penalty=numbers,
    presence_penalty=numbers,
    frequency_penalty=numbers,
    logit_bias=st.lists(st.tuples(ids, numbers), max_size=3).map(tuple),
    min_tokens=counts,
    end_ids=st.lists(ids, max_size=3).map(tuple),
    logprobs=st.none() | counts,
    prompt_logprobs=st.none() | counts,
    constraint=st.none()
    | st.builds(
        requested.Constraint, st.sampled_from(get_args(requested.ConstraintKind)), st.text()
    ),
    expected_ids=st.lists(ids, max_size=3).map(tuple),
)
openings = st.builds(
    seams.Opening, st.integers(0, 2**40), st.lists(ids, max_size=8), counts, samplings, counts
)
steps = st.builds(
    seams.Step,
    id=st.integers(0, 2**40),
    start=counts,
    num_tokens=counts,
    draw=st.booleans(),
    blocks=st.lists(counts, max_size=4),
    padding=counts | st.just(0),
    drafts=counts | st.just(0),
)
drafts = st.builds(seams.Drafts, counts, counts)


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    assert generate(tmp_path) == 0
    names = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    assert len(names) == 3
    for name in names:
        hint = f"{PROTO} was changed: run python -m model_server.wire"
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), hint


@given(openings)
def test_an_opening_arrives_as_it_was_sent(opening: seams.Opening) -> None:
    sent = messages.opening(opening).SerializeToString()
    assert messages.read_opening(wire.Opening.FromString(sent)) == opening


def test_the_strategy_above_varies_every_field_of_sampling() -> None:
    fields = {field.name for field in dataclasses.fields(requested.Sampling)}
    sent = {field.name for field in wire.Sampling.DESCRIPTOR.fields}
    assert fields - sent == {"logit_bias"}
    assert sent - fields == {"bias_tokens", "biases"}


@given(st.lists(steps, min_size=1, max_size=6), st.lists(st.integers(0, 2**40), max_size=3))
def test_an_iteration_arrives_as_it_was_sent(steps: list[seams.Step], released: list[int]) -> None:
    sent = messages.iteration(2**64 - 1, 7, steps, released).SerializeToString()
    message = wire.Iteration.FromString(sent)
    arrived = [step._replace(blocks=list(step.blocks)) for step in messages.read_steps(message)]
    assert arrived == steps
    assert list(message.released) == released
    assert (message.session, message.number) == (2**64 - 1, 7)


@given(
    st.lists(st.lists(ids, max_size=3), min_size=1, max_size=5),
    st.dictionaries(st.integers(0, 4), st.lists(scores, max_size=2)),
    st.dictionaries(st.integers(0, 4), st.tuples(counts, st.lists(scores, max_size=2))),
    st.dictionaries(st.integers(0, 4), drafts),
)
def test_an_outcome_arrives_as_it_was_sent(tokens, logprobs, prompt_logprobs, drafts) -> None:
    outcome = seams.Outcome(tokens, 12, 0.5, logprobs, prompt_logprobs, drafts=drafts)
    sent = messages.outcome(outcome, rank=0).SerializeToString()
    assert messages.read_outcome(wire.Outcome.FromString(sent)) == outcome
    other = messages.outcome(outcome, rank=1)  # all but the first send a digest alone
    assert (other.digest, len(other.tokens)) == (wire.Outcome.FromString(sent).digest, 0)


@given(st.lists(st.lists(ids, max_size=3), max_size=4), st.lists(st.lists(ids, max_size=3)))
def test_only_the_same_tokens_of_the_same_rows_have_a_digest_in_common(
    a: list[list[int]], b: list[list[int]]
) -> None:
    assert (messages.digest_of(a) == messages.digest_of(b)) == (a == b)
