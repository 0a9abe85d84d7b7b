"""What crosses between an engine and a model server arrives as it was sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st

import seams
from model_server.wire import messages
from model_server.wire import model_pb2 as wire
from tests.support.process import ROOT

PROTO = "model_server/wire/model.proto"

ids = st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**20)
numbers = st.floats(allow_nan=False)
scores = st.builds(
    seams.TokenLogprobs, ids, numbers, st.lists(st.tuples(ids, numbers), max_size=3).map(tuple)
)
kinds = st.sampled_from(get_args(seams.ConstraintKind))
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "int": counts,
    "int | None": st.none() | counts,
    "float": numbers,
    "tuple[int, ...]": st.lists(ids, max_size=4).map(tuple),
    "tuple[tuple[int, float], ...]": st.lists(st.tuples(ids, numbers), max_size=3).map(tuple),
    "Constraint | None": st.none() | st.builds(seams.Constraint, kinds, st.text()),
}
# every field of them, those included that have a default
samplings = st.builds(
    seams.Sampling,
    **{  # type: ignore[arg-type]
        field.name: st.integers(-(2**63), 2**64 - 1)
        if field.name == "seed"
        else FIELDS[str(field.type)]
        for field in dataclasses.fields(seams.Sampling)
    },
)
openings = st.builds(
    seams.Opening, st.integers(0, 2**40), st.lists(ids, max_size=8), counts, samplings, counts
)
blocks = st.lists(counts, max_size=4)
steps = st.builds(
    seams.Step, st.integers(0, 2**40), counts, counts, st.booleans(), blocks, counts, counts
)
drafts = st.builds(seams.Drafts, counts, counts)


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    assert protoc.main(["protoc", f"-I{ROOT}", *outputs, PROTO]) == 0
    names = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    assert len(names) == 3
    for name in names:
        hint = f"{PROTO} was changed: it says what to run"
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), hint


@given(openings)
def test_an_opening_arrives_as_it_was_sent(opening: seams.Opening) -> None:
    assert messages.read_opening(messages.opening(opening)) == opening


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
    assert (other.digest, other.outcome) == (wire.Outcome.FromString(sent).digest, b"")
