"""The layouts: the same rows give the same tokens in a rectangle, in a pack and one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from generate import dynamic, nobatch, static
from generate.modes import LayOut
from requested import Sampling
from tests.bare import Bare, Open
from tests.support.hash_model import HashModel, virtual_duration_s
from tests.support.hashed import reference

PROMPTS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=9), min_size=1, max_size=6)


def opened(lay_out: LayOut, prompts: Sequence[Sequence[int]]) -> tuple[Bare, list[Open]]:
    """Requests whose seeds are their numbers."""
    bare = Bare(HashModel(vocab_size=13, duration_s=virtual_duration_s), lay_out)
    return bare, bare.open(prompts, 4, [Sampling(seed=seed) for seed in range(len(prompts))])


def references(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    return [[*prompt, *reference(prompt, tokens, seed, 13)] for seed, prompt in enumerate(prompts)]


@given(prompts=PROMPTS)
def test_a_rectangle_pads_on_the_left_and_counts_what_it_pads(prompts: list[list[int]]) -> None:
    bare, rows = opened(static.lay_out, prompts)
    assert bare.advance(rows).positions == len(prompts) * max(map(len, prompts))
    assert bare.advance(rows).positions == len(prompts)
    assert [row.ids for row in rows] == references(prompts, 2)


@given(prompts=PROMPTS)
def test_a_pack_holds_prefill_beside_decode_and_pads_nothing(prompts: list[list[int]]) -> None:
    bare, rows = opened(dynamic.lay_out, prompts)
    half = len(prompts) // 2
    if half:
        bare.advance(rows[:half])
    assert bare.advance(rows).positions == half + sum(map(len, prompts[half:]))
    assert [row.ids for row in rows] == (
        references(prompts, 2)[:half] + references(prompts, 1)[half:]
    )


@given(prompt=st.lists(st.integers(0, 12), min_size=2, max_size=9), cut=st.integers(1, 8))
def test_a_prefill_in_two_chunks_ends_like_one_in_one(prompt: list[int], cut: int) -> None:
    bare, rows = opened(dynamic.lay_out, [prompt])
    assert bare.advance(rows, [min(cut, len(prompt) - 1)]).tokens == [[]]
    bare.advance(rows)
    assert [rows[0].ids] == references([prompt], 1)


@given(prompt=st.lists(st.integers(0, 12), min_size=1, max_size=9))
def test_a_single_row_is_laid_out_unchanged(prompt: list[int]) -> None:
    bare, rows = opened(nobatch.lay_out, [prompt])
    assert bare.advance(rows).positions == len(prompt)
    assert [rows[0].ids] == references([prompt], 1)


@given(prompts=PROMPTS.filter(lambda prompts: len(prompts) > 1))
def test_a_row_that_is_done_keeps_its_place_in_the_rectangle(prompts: list[list[int]]) -> None:
    bare, rows = opened(static.lay_out, prompts)
    bare.advance(rows)
    second = bare.advance(rows, [0] + [1] * (len(rows) - 1))
    assert second.positions == len(prompts)
    assert second.tokens[0] == []
    assert [row.ids for row in rows[1:]] == references(prompts, 2)[1:]
