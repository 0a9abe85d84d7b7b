"""The layouts: the same rows give the same tokens in a rectangle, in a pack and one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from generate import dynamic, nobatch, static
from seams import KV, Draw, Need, Outcome, Row, Sampling
from tests.hash_model import HashModel, reference, virtual_duration_s

PROMPTS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9), min_size=1, max_size=6)


def model() -> HashModel:
    return HashModel(vocab_size=13, duration_s=virtual_duration_s)


def prefill(kvs: Sequence[KV], prompts: Sequence[Sequence[int]]) -> list[Row]:
    return [
        Row(kv, 0, prompt, Draw(Sampling(seed=seed), prompt, len(prompt)))
        for seed, (kv, prompt) in enumerate(zip(kvs, prompts, strict=True))
    ]


def decode(rows: Sequence[Row], outcome: Outcome) -> list[Row]:
    return [
        Row(row.kv, row.start + len(row.tokens), [token], row.draw)
        for row, token in zip(rows, outcome.tokens, strict=True)
        if token is not None
    ]


@given(prompts=PROMPTS)
def test_a_rectangle_pads_on_the_left_and_counts_what_it_pads(prompts: list[list[int]]) -> None:
    dense = model()
    rows = prefill(dense.allocate([Need(len(p), 3) for p in prompts]), prompts)
    first = static.generate(dense, rows)
    second = static.generate(dense, decode(rows, first))
    assert first.positions == len(prompts) * max(map(len, prompts))
    assert second.positions == len(prompts)
    assert [list(pair) for pair in zip(first.tokens, second.tokens, strict=True)] == [
        reference(prompt, 2, seed, 13) for seed, prompt in enumerate(prompts)
    ]


@given(prompts=PROMPTS)
def test_a_pack_holds_prefill_beside_decode_and_pads_nothing(prompts: list[list[int]]) -> None:
    ragged = model()
    half = len(prompts) // 2
    rows = prefill(ragged.allocate([Need(len(p), 3) for p in prompts]), prompts)
    tokens: list[list[int | None]] = [[] for _ in prompts]
    if half:
        first = dynamic.generate(ragged, rows[:half])
        for seed, token in enumerate(first.tokens):
            tokens[seed].append(token)
        rows = decode(rows[:half], first) + rows[half:]
    second = dynamic.generate(ragged, rows)
    for seed, token in enumerate(second.tokens):
        tokens[seed].append(token)
    assert second.positions == half + sum(map(len, prompts[half:]))
    assert tokens == [
        reference(prompt, 2 if seed < half else 1, seed, 13) for seed, prompt in enumerate(prompts)
    ]


@given(prompt=st.lists(st.integers(0, 12), min_size=2, max_size=9), cut=st.integers(1, 8))
def test_a_prefill_in_two_chunks_ends_like_one_in_one(prompt: list[int], cut: int) -> None:
    cut = min(cut, len(prompt) - 1)
    ragged = model()
    (kv,) = ragged.allocate([Need(len(prompt), 1)])
    chunk = dynamic.generate(ragged, [Row(kv, 0, prompt[:cut], None)])
    rest = dynamic.generate(
        ragged, [Row(kv, cut, prompt[cut:], Draw(Sampling(seed=5), prompt, len(prompt)))]
    )
    assert chunk.tokens == [None]
    assert rest.tokens == reference(prompt, 1, 5, 13)


@given(prompt=st.lists(st.integers(0, 12), min_size=1, max_size=9))
def test_one_row_alone_is_laid_out_as_it_is(prompt: list[int]) -> None:
    dense = model()
    rows = prefill(dense.allocate([Need(len(prompt), 2)]), [prompt])
    outcome = nobatch.generate(dense, rows)
    assert outcome.positions == len(prompt)
    assert outcome.tokens == reference(prompt, 1, 0, 13)


@given(prompts=PROMPTS.filter(lambda prompts: len(prompts) > 1))
def test_a_row_that_is_done_keeps_its_place_in_the_rectangle(prompts: list[list[int]]) -> None:
    dense = model()
    rows = prefill(dense.allocate([Need(len(p), 4) for p in prompts]), prompts)
    first = static.generate(dense, rows)
    running, done = decode(rows, first), rows[0]
    running[0] = Row(done.kv, len(done.tokens), (), None)
    second = static.generate(dense, running)
    assert second.positions == len(prompts)
    assert second.tokens[0] is None
    assert second.tokens[1:] == [
        reference(prompt, 2, seed, 13)[1] for seed, prompt in enumerate(prompts) if seed
    ]
