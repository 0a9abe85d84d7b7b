"""Logits equal those of `transformers`' GPT-2, for prefill and every decode step, in all modes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from batching import Generate
from generate import dynamic, nobatch, static
from model import ServerModel
from seams import KV, Draw, Need, Row, Sampling, TokenLogprobs
from tests.model.peer import VOCAB, LogitsTap, load, peer_logits, without_kernel

TOLERANCE = 1e-4  # the largest absolute difference of a logit, float32
STEPS = 6
GENERATE: dict[str, Generate] = {
    "nobatch": nobatch.generate,
    "static": static.generate,
    "dynamic": dynamic.generate,
}


def greedy(known: int) -> Draw:
    return Draw(Sampling(temperature=0), [0] * known, known)


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]


def advance(model: ServerModel, mode: str, kvs: Sequence[KV], new: Sequence[Sequence[int]],
            starts: Sequence[int]) -> list[int]:  # fmt: skip
    rows = [
        Row(kv, start, tokens, greedy(start + len(tokens)))
        for kv, tokens, start in zip(kvs, new, starts, strict=True)
    ]
    outcome = GENERATE[mode](model, rows)
    return [token for token in outcome.tokens if token is not None]


@pytest.mark.parametrize("attention", ["kernel", "torch"])
@pytest.mark.parametrize(
    ("mode", "lengths"),
    [
        ("nobatch", [1]),
        ("nobatch", [23]),
        ("static", [5, 5, 5]),
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
        model = load(folder, mode)
        sequences = prompts_of(lengths)
        kvs = model.allocate([Need(length, STEPS) for length in lengths])
        new, starts = [list(ids) for ids in sequences], [0] * len(lengths)
        for step in range(STEPS):
            tokens = advance(model, mode, kvs, new, starts)
            for row, ids in enumerate(sequences):
                expected = peer_logits(peer, ids)
                assert (tap.seen[step][row] - expected).abs().max() <= TOLERANCE
                assert tokens[row] == int(expected.argmax())
                starts[row] = len(ids)
                ids.append(tokens[row])
            new = [ids[-1:] for ids in sequences]


@pytest.mark.parametrize("attention", ["kernel", "torch"])
def test_prefill_chunks_beside_decodes_give_the_logits_of_the_whole(
    attention: str, checkpoint: tuple[Path, GPT2LMHeadModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, peer = checkpoint
    tap = LogitsTap(monkeypatch)
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        model = load(folder, "dynamic")
        chunked, decoding = prompts_of([30, 4])
        kv_chunked, kv_decoding = model.allocate([Need(30, 1), Need(4, 8)])
        decoding += advance(model, "dynamic", [kv_decoding], [decoding], [0])
        for start, end in ((0, 1), (1, 18), (18, 30)):
            last = end == len(chunked)
            rows = [
                Row(kv_chunked, start, chunked[start:end], greedy(end) if last else None),
                Row(kv_decoding, len(decoding) - 1, decoding[-1:], greedy(len(decoding))),
            ]
            outcome = GENERATE["dynamic"](model, rows)
            assert (outcome.tokens[0] is None) == (not last)
            expected = peer_logits(peer, decoding)
            assert (tap.seen[-1][-1] - expected).abs().max() <= TOLERANCE
            token = outcome.tokens[1]
            assert token is not None
            decoding.append(token)
        assert (tap.seen[-1][0] - peer_logits(peer, chunked)).abs().max() <= TOLERANCE


def test_rows_that_are_done_run_on_past_the_context_without_harm(
    checkpoint: tuple[Path, GPT2LMHeadModel],
) -> None:
    folder, peer = checkpoint
    model = load(folder, "static")
    long, short = prompts_of([90, 3])
    kvs = model.allocate([Need(90, 2), Need(3, 20)])
    tokens = advance(model, "static", kvs, [long, short], [0, 0])
    short.append(tokens[1])
    for _ in range(19):
        rows = [
            Row(kvs[0], 90, [], None),
            Row(kvs[1], len(short) - 1, short[-1:], greedy(len(short))),
        ]
        token = GENERATE["static"](model, rows).tokens[1]
        assert token == int(peer_logits(peer, short).argmax())
        short.append(token)


def test_bfloat16_stays_close_to_float32(
    checkpoint: tuple[Path, GPT2LMHeadModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, peer = checkpoint
    tap = LogitsTap(monkeypatch)
    model = load(folder, "dynamic", "bfloat16")
    prompts = prompts_of([9, 31])
    kvs = model.allocate([Need(9, 1), Need(31, 1)])
    advance(model, "dynamic", kvs, prompts, [0, 0])
    for row, ids in enumerate(prompts):
        expected = peer_logits(peer, ids)
        error = (tap.seen[0][row] - expected).norm() / expected.norm()
        assert error < 3e-2  # bfloat16 keeps 8 bits


@pytest.mark.parametrize("cut", [12, 5])
def test_prompt_logprobs_are_those_of_the_whole_prompt_also_in_chunks(
    cut: int, checkpoint: tuple[Path, GPT2LMHeadModel]
) -> None:
    folder, peer = checkpoint
    (prompt,) = prompts_of([12])
    model = load(folder, "dynamic")
    (kv,) = model.allocate([Need(12, 1)])
    sampling = Sampling(temperature=0, logprobs=2, prompt_logprobs=2)
    found: list[TokenLogprobs] = []
    next_token = None
    for start, end in ((0, cut), (cut, 12)):
        if start < end:
            draw = Draw(sampling, prompt, 12, next_token=end == 12)
            outcome = GENERATE["dynamic"](model, [Row(kv, start, prompt[start:end], draw)])
            found += outcome.prompt_logprobs[0]
            next_token = outcome.logprobs.get(0)
    with torch.no_grad():
        expected = peer(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert [entry.token for entry in found] == prompt[1:]
    for i, entry in enumerate(found):
        assert abs(entry.logprob - float(expected[i, prompt[i + 1]])) <= TOLERANCE
        assert entry.top[0][0] == int(expected[i].argmax())
    assert next_token is not None
    assert abs(next_token.logprob - float(expected[-1].max())) <= TOLERANCE
