"""Sampling draws from the distribution it should, and from nothing but (seed, position)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from api.limits import mass
from kernels import sampling_library
from requested import Sampling
from runtime.sampling.drawing import EVERYTHING, Asked, gumbel, keys, truncated
from runtime.sampling.sampler import Known, Sampler, asked_of, drawing_of
from seams import Opening

CPU = torch.device("cpu")


def row(sampling: Sampling, position: int = 1) -> Opening:
    return Opening(0, range(position), position, sampling)


def sample(logits: Tensor, rows: Sequence[Known]) -> Tensor:
    return Sampler().draw(logits, rows)


def twin(logits: Tensor, rows: Sequence[Known]) -> Tensor:
    return drawing_of(rows, logits.shape[-1], CPU).draw(logits)


def some_logits(seed: int, rows: int, size: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * spread


some_mass = st.just(1.0) | st.floats(0.01, 0.99)
samplings = st.builds(
    Sampling,
    seed=st.integers(0, 2**64),
    temperature=st.just(0.0) | st.floats(0.2, 3),
    top_k=st.none() | st.integers(1, 600),
    top_p=some_mass,
    min_p=st.just(0.0) | st.floats(0.01, 1),
    typical_p=some_mass,
    repetition_penalty=st.just(1.0) | st.floats(0.5, 2),
    presence_penalty=st.just(0.0) | st.floats(-2, 2),
    frequency_penalty=st.just(0.0) | st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 39), st.floats(-100, 100), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
    min_tokens=st.integers(0, 4),
    end_ids=st.lists(st.integers(0, 39), max_size=3, unique=True).map(tuple),
)


def test_greedy_takes_the_first_of_the_best() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, -1.0]])
    assert sample(logits, [row(Sampling(temperature=0))] * 2).tolist() == [1, 0]


def test_sampled_frequencies_are_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.1, 0.025])
    draws = 40_000
    tokens = sample(
        probabilities.log().expand(draws, -1),
        [row(Sampling(seed=1), i + 1) for i in range(draws)],
    )
    counts = tokens.bincount(minlength=5).double()
    expected = probabilities.double() * draws
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # the 99.9 % point of four degrees of freedom


def test_a_nucleus_is_drawn_from_in_proportion_and_no_other_token_is_drawn() -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.025, 0.25, 0.125])
    draws = 40_000
    rows = [row(Sampling(seed=2, top_p=0.8), i + 1) for i in range(draws)]
    counts = sample(probabilities.log().expand(draws, -1), rows).bincount(minlength=5).double()
    assert counts[0] == counts[2] == 0
    kept = torch.tensor([1, 3, 4])
    expected = probabilities[kept].double() / probabilities[kept].sum() * draws
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < 13.8  # the 99.9 % point of two degrees of freedom


def test_noise_of_neighbouring_seeds_positions_and_tokens_is_uncorrelated() -> None:
    noise = gumbel(torch.arange(-200, 200, dtype=torch.int32), 500)
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.02  # Euler's constant
    for a, b in ((noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1])):
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(float(correlation)) < 0.01


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20))
def test_keys_are_those_of_splitmix64_in_whole_numbers(seed: int, position: int) -> None:
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 1) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
    found = keys(signed, torch.tensor([position]))
    assert found.item() == (z ^ (z >> 31)) % 2**32 - 2**31


@given(st.integers(0, 2**64), st.integers(1, 1023), st.integers(1, 6), st.integers(0, 5))
def test_a_draw_does_not_depend_on_its_batch(seed, position, rows, index) -> None:  # type: ignore[no-untyped-def]
    index %= rows
    logits = some_logits(seed % 2**32, rows, 50, 1.0)
    others = [Sampling(seed=i, temperature=float(i % 3)) for i in range(rows)]
    others[index] = mine = Sampling(seed=seed, temperature=0.8, top_k=20, top_p=0.9)
    positions = [7] * rows
    positions[index] = position
    known = [row(sampling, at) for sampling, at in zip(others, positions, strict=True)]
    together = sample(logits, known)[index]
    assert together == sample(logits[index : index + 1], [row(mine, position)])[0]


@pytest.mark.skipif(sampling_library() is None, reason="no compiler")
@given(
    st.integers(0, 10_000),
    st.lists(samplings, min_size=1, max_size=6),
    st.sampled_from([40, 128, 500]),
    st.sampled_from([0.3, 3.0, 12.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_the_kernel_draws_what_its_twin_draws(seed, asked, size, spread, dtype) -> None:  # type: ignore[no-untyped-def]
    logits = some_logits(seed, len(asked), size, spread).to(dtype)
    known = torch.randint(0, 40, (len(asked), 12), generator=torch.Generator().manual_seed(seed))
    rows = [
        Opening(i, known[i, : 4 + i].tolist(), 1 + i, sampling) for i, sampling in enumerate(asked)
    ]
    before = logits.clone()
    assert sample(logits, rows).tolist() == twin(logits, rows).tolist()
    assert torch.equal(logits, before)


@pytest.mark.skipif(sampling_library() is None, reason="no compiler")
@pytest.mark.parametrize(
    "asked", [{}, {"top_p": 0.9}, {"top_p": 0.1}, {"top_k": 50, "top_p": 0.8}, {"top_k": 20_000}]
)
def test_the_kernel_draws_what_its_twin_draws_from_a_large_vocabulary(asked) -> None:  # type: ignore[no-untyped-def]
    logits = some_logits(1, 6, 50_257)
    rows = [row(Sampling(seed=i, temperature=0.8, **asked)) for i in range(6)]
    assert sample(logits, rows).tolist() == twin(logits, rows).tolist()


@pytest.mark.parametrize("drawn_by", [sample, twin])
def test_the_first_of_equal_tokens_at_a_boundary_are_kept(drawn_by) -> None:  # type: ignore[no-untyped-def]
    logits = torch.zeros(400, 8)
    for asked in ({"top_k": 3}, {"top_p": 0.375}, {"typical_p": 0.375}):
        rows = [row(Sampling(seed=i, **asked)) for i in range(len(logits))]  # type: ignore[arg-type]
        assert set(drawn_by(logits, rows).tolist()) == {0, 1, 2}


@pytest.mark.parametrize("drawn_by", [sample, twin])
@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_a_mass_that_is_0_in_float32_leaves_one_token(drawn_by, name) -> None:  # type: ignore[no-untyped-def]
    logits = some_logits(0, 1, 400).expand(50, -1)
    rows = [row(Sampling(seed=i, **{name: mass(1e-46)})) for i in range(len(logits))]  # type: ignore[arg-type]
    (token,) = set(drawn_by(logits, rows).tolist())
    log_p = logits[0].log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum()
    typical = (-log_p - entropy).abs().argmin()
    assert token == (logits[0].argmax() if name == "top_p" else typical)


@given(
    st.integers(0, 1000),
    st.floats(0.2, 3),
    st.none() | st.integers(1, 60),
    st.sampled_from([1.0, 0.95, 0.5, 0.05]),
)
def test_truncation_keeps_what_transformers_keeps(seed, temperature, top_k, top_p) -> None:  # type: ignore[no-untyped-def]
    logits = some_logits(seed, 1, 50)
    ids = torch.zeros(1, 1, dtype=torch.long)
    expected = TemperatureLogitsWarper(temperature)(ids, logits.clone())
    if top_k is not None:
        expected = TopKLogitsWarper(min(top_k, 50))(ids, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(ids, expected)
    kept = truncated(logits / temperature, alone(Sampling(top_k=top_k, top_p=top_p)))
    assert torch.equal(kept > -torch.inf, expected > -torch.inf)


@given(st.integers(0, 1000), st.sampled_from([0.95, 0.5, 0.1]))
def test_the_typical_set_is_that_of_transformers(seed: int, typical_p: float) -> None:
    logits = some_logits(seed, 1, 50)
    expected = TypicalLogitsWarper(typical_p)(torch.zeros(1, 1, dtype=torch.long), logits.clone())
    scores = truncated(logits, alone(Sampling(typical_p=typical_p)))
    assert torch.equal(scores > -torch.inf, expected > -torch.inf)


@given(st.integers(0, 1000), st.floats(0.001, 1))
def test_min_p_keeps_what_transformers_keeps(seed: int, min_p: float) -> None:
    logits = some_logits(seed, 1, 50)
    expected = MinPLogitsWarper(min_p)(torch.zeros(1, 1, dtype=torch.long), logits.clone())  # type: ignore[arg-type]
    scores = truncated(logits, alone(Sampling(min_p=min_p)))
    assert torch.equal(scores > -torch.inf, expected > -torch.inf)


def alone(sampling: Sampling) -> Asked:
    return asked_of([row(sampling)], 50, CPU)


def penalised(logits: Tensor, known: Opening) -> Tensor:
    return drawing_of([known], len(logits), CPU).shaped(logits[None])[0]


@given(st.lists(st.integers(0, 19), min_size=1, max_size=12), st.floats(0.5, 2))
def test_the_repetition_penalty_is_that_of_transformers(known: list[int], rate: float) -> None:
    logits = some_logits(len(known), 1, 20, 1.0)
    expected = RepetitionPenaltyLogitsProcessor(rate)(torch.tensor([known]), logits.clone())
    ours = penalised(logits[0], Opening(0, known, 1, Sampling(repetition_penalty=rate)))
    assert torch.allclose(ours, expected[0])


def test_penalties_count_generated_tokens_and_bias_adds() -> None:
    sampling = Sampling(
        presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((0, 3.0), (3, -100.0))
    )
    logits = penalised(torch.zeros(5), Opening(0, [1, 1, 2, 2, 4], 2, sampling))
    assert logits.tolist() == [3.0, 0.0, -1.0, -100.0, -0.75]


def test_end_tokens_are_drawn_after_min_tokens_and_not_before() -> None:
    sampling = Sampling(temperature=0, min_tokens=2, end_ids=(1, 3))
    logits = torch.tensor([[0.0, 4.0, 1.0, 3.0]])
    sampler, growing = Sampler(), Opening(0, [0, 0, 0], 3, sampling)
    drawn = []
    for _ in range(4):
        drawn += (new := sampler.draw(logits, [growing]).tolist())
        growing.ids.extend(new)  # type: ignore[attr-defined]
    assert drawn == [2, 2, 1, 1]


def test_a_shaped_request_leaves_its_neighbours_logits_alone() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    biased = Sampling(temperature=0, logit_bias=((2, -100.0),))
    rows = [row(biased), row(Sampling(temperature=0))]
    assert sample(logits, rows).tolist() == [1, 2]
    assert logits.tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]


@given(st.lists(samplings, min_size=2, max_size=4), st.data())
def test_a_batch_that_stays_or_changes_draws_what_its_rows_draw_alone(asked, data) -> None:  # type: ignore[no-untyped-def]
    """Rows pause, come back and are prompted again, as in iterations."""
    sequences = [Opening(i, [i, 1, 2], 2, sampling) for i, sampling in enumerate(asked)]
    sampler = Sampler()
    for step in range(5):
        present = data.draw(st.lists(st.sampled_from(sequences), min_size=1, unique_by=id))
        logits = some_logits(step, len(present), 40)
        lone = [sample(logits[i : i + 1], [known]).item() for i, known in enumerate(present)]
        assert sampler.draw(logits, present).tolist() == lone
        for known, token in zip(present, lone, strict=True):
            known.ids.append(token)


class Operators(TorchDispatchMode):
    """Names of the operators that were called, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not function.is_view:
            self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_a_device_draws_for_any_rows_in_the_same_operators_without_reading_back() -> None:
    penalties = Sampling(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1)
    bias = Sampling(logit_bias=((3, 1.0), (5, -100.0)), min_tokens=3, end_ids=(1, 2))
    cuts, typical = Sampling(top_p=0.9, min_p=0.1, top_k=9), Sampling(typical_p=0.5)
    counts = []
    for sampling in (Sampling(temperature=0), Sampling(), cuts, typical, penalties, bias):
        few, many = (operators([row(sampling, 6)] * rows) for rows in (4, 64))
        assert few == many
        assert not {"aten::_local_scalar_dense", "aten::item", "aten::nonzero"} & set(few)
        assert ("aten::sort.stable" in few) == (sampling in (cuts, typical))
        counts.append(len(few))
    greedy, plain, *others = counts
    assert greedy < 6
    assert plain < 70
    assert max(others) < 110


def operators(rows: Sequence[Known]) -> list[str]:
    """Of one draw by the twin."""
    drawing = drawing_of(rows, 50, CPU)
    with torch.no_grad(), Operators() as called:
        drawing.history.append(drawing.draw(torch.zeros(len(rows), 50)))
    return called.names


@given(st.integers(0, 1000), st.lists(samplings, min_size=1, max_size=4))
def test_what_no_row_asks_for_changes_nothing(seed: int, asked: list[Sampling]) -> None:
    rows = [row(sampling, 5) for sampling in asked]
    drawing = drawing_of(rows, 40, CPU)
    logits = some_logits(seed, len(rows), 40)
    assert torch.equal(drawing.scores(logits), replace(drawing, wants=EVERYTHING).scores(logits))
