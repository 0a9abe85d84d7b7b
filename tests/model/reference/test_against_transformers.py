"""Logits equal those of `transformers`' GPT-2, for prefill and every decode step, in all modes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from generate import dynamic, nobatch, static
from generate.modes import LayOut
from requested import Sampling, TokenLogprobs
from seams import Opening
from tests.bare import GREEDY, Bare, Open
from tests.model.peer import VOCAB, LogitsTap, load, peer_logits, without_kernel

TOLERANCE = 1e-4  # the largest absolute difference of a logit, float32
STEPS = 6
LAY_OUT: dict[str, LayOut] = {
    "nobatch": nobatch.lay_out,
    "static": static.lay_out,
    "dynamic": dynamic.lay_out,
}


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("attention", ["kernel", "torch"])
@pytest.mark.parametrize(
    ("mode", "lengths"),
    [
        ("nobatch", [23]),
        ("static", [1, 40, 7, 2]),
        ("dynamic", [1, 40, 7, 2, 13]),
    ],
)
def test_logits_equal_transformers_for_prefill_and_decode(
    mode: str,
    lengths: list[int],
    attention: str,
    checkpoint: tuple[Path, GPT2LMHeadModel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, peer = checkpoint
    tap = LogitsTap(monkeypatch)
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        bare = Bare(load(folder, mode), LAY_OUT[mode])
        sequences = bare.open(prompts_of(lengths), STEPS)
        for step in range(STEPS):
            texts = [list(sequence.ids) for sequence in sequences]
            outcome = bare.advance(sequences)
            for row, ids in enumerate(texts):
                expected = peer_logits(peer, ids)
                assert (tap.seen[step][row] - expected).abs().max() <= TOLERANCE
                assert outcome.tokens[row] == [int(expected.argmax())]


@pytest.mark.parametrize("attention", ["kernel", "torch"])
def test_prefill_chunks_with_decodes_give_the_logits_of_the_whole_prompt(
    attention: str, checkpoint: tuple[Path, GPT2LMHeadModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, peer = checkpoint
    tap = LogitsTap(monkeypatch)
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        bare = Bare(load(folder, "dynamic"), dynamic.lay_out)
        chunked, decoding = (bare.open([prompt], 8)[0] for prompt in prompts_of([30, 4]))
        prompt = list(chunked.ids)
        bare.advance([decoding])
        for tokens in (1, 17, 12):
            text = list(decoding.ids)
            outcome = bare.advance([chunked, decoding], [tokens, 1])
            assert (outcome.tokens[0] == []) == (chunked.computed < len(prompt))
            expected = peer_logits(peer, text)
            assert (tap.seen[-1][-1] - expected).abs().max() <= TOLERANCE
            assert outcome.tokens[1] == [int(expected.argmax())]
        assert (tap.seen[-1][0] - peer_logits(peer, prompt)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("attention", ["kernel", "torch"])
def test_rows_that_are_done_are_padding_and_affect_no_other_row(
    attention: str, checkpoint: tuple[Path, GPT2LMHeadModel]
) -> None:
    folder, peer = checkpoint
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        bare = Bare(load(folder, "static"), static.lay_out)
        # it takes 20 iterations, more than the context would leave to a row that ran on
        long, short = bare.open(prompts_of([90, 3]), 20)
        bare.advance([long, short])
        for _ in range(19):
            text = list(short.ids)
            # the engine names those that advance first
            outcome = bare.advance([short, long], [1, 0])
            assert outcome.tokens == [[int(peer_logits(peer, text).argmax())], []]


def test_a_sequence_that_is_opened_again_starts_from_the_beginning(
    checkpoint: tuple[Path, GPT2LMHeadModel],
) -> None:
    folder, peer = checkpoint
    for mode in ("static", "dynamic"):
        bare = Bare(load(folder, mode), LAY_OUT[mode])
        (first,) = bare.open(prompts_of([9]), 4)
        bare.advance([first])
        bare.model.open([Opening(first.id, first.ids, 9, GREEDY)])
        again = Open(first.id, list(first.ids), bare.blocks(14))
        bare.advance([again])
        assert again.ids[-1] == int(peer_logits(peer, first.ids).argmax())


def test_bfloat16_stays_close_to_float32(
    checkpoint: tuple[Path, GPT2LMHeadModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, peer = checkpoint
    tap = LogitsTap(monkeypatch)
    bare = Bare(load(folder, "dynamic", "bfloat16"), dynamic.lay_out)
    prompts = prompts_of([9, 31])
    bare.advance(bare.open(prompts, 1))
    for row, ids in enumerate(prompts):
        expected = peer_logits(peer, ids)
        error = (tap.seen[0][row] - expected).norm() / expected.norm()
        assert error < 3e-2  # bfloat16 keeps 8 bits


@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize(("cut", "scored"), [(12, 0), (5, 3), (5, 8)])
def test_prompt_logprobs_are_those_of_the_whole_prompt_also_in_chunks(
    mode: str, cut: int, scored: int, checkpoint: tuple[Path, GPT2LMHeadModel]
) -> None:
    """`scored` of them are known from before a preemption."""
    folder, peer = checkpoint
    prompt, neighbour = prompts_of([12, 20])
    bare = Bare(load(folder, mode), LAY_OUT[mode])
    sampling = Sampling(temperature=0, logprobs=2, prompt_logprobs=2)
    wanted, beside = bare.open([prompt, neighbour], 1, [sampling, GREEDY], scored)
    found: dict[int, TokenLogprobs] = {}
    outcome = bare.advance([wanted, beside], [cut, 20])
    for _ in range(2):
        if 0 in outcome.prompt_logprobs:
            first, entries = outcome.prompt_logprobs[0]
            found.update(enumerate(entries, first))
        if wanted.computed < 12:
            outcome = bare.advance([wanted, beside], [12 - cut, 0])
    with torch.no_grad():
        expected = peer(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert list(found) == list(range(scored + 1, 12))
    for i, entry in found.items():
        assert entry.token == prompt[i]
        assert abs(entry.logprob - float(expected[i - 1, prompt[i]])) <= TOLERANCE
        assert entry.top[0][0] == int(expected[i - 1].argmax())
    (next_token,) = outcome.logprobs[0]
    assert abs(next_token.logprob - float(expected[-1].max())) <= TOLERANCE
    assert 1 not in outcome.prompt_logprobs
