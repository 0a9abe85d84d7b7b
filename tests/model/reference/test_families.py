"""The executor serves every family in both layouts: logits of `transformers` at every step,
whatever is prefilled in chunks, done, opened again or scored."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from generate.modes import LayOut, padded, ragged
from model import LoadOptions, load_model
from seams import LoadError, Sampling, TokenLogprobs
from tests.bare import GREEDY, Bare
from tests.model.peer import LogitsTap, load, without_kernel
from tests.models.families import CONFIGS, VOCAB, logits_of, write_all

TOLERANCE = 1e-4  # of a logit, float32
LAYOUTS: dict[str, LayOut] = {"static": padded, "dynamic": ragged}
modes = pytest.mark.parametrize("mode", LAYOUTS)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    return write_all(tmp_path_factory)


def prompts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize(("mode", "attention"), [("static", "torch"), ("dynamic", "kernel")])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(
    name: str,
    mode: str,
    attention: str,
    checkpoints: dict[str, tuple[Path, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, peer = checkpoints[name]
    tap = LogitsTap(monkeypatch)
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        bare = Bare(load(folder, mode), LAYOUTS[mode])
        sequences = bare.open(prompts_of(1, 40, 7), 4)
        if mode == "dynamic":  # chunks of the long prompt beside a decode
            bare.advance(sequences[:2], [1, 30])
        first = len(tap.seen)
        for step in range(first, first + 4):
            texts = [list(sequence.ids) for sequence in sequences]
            outcome = bare.advance(sequences)
            for row, ids in enumerate(texts):
                expected = logits_of(peer, ids)[-1]
                assert (tap.seen[step][row] - expected).abs().max() <= TOLERANCE
                assert outcome.tokens[row] == [int(expected.argmax())]


@pytest.mark.parametrize("attention", ["kernel", "torch"])
def test_rows_that_are_done_are_padding_and_affect_no_other_row(
    attention: str, checkpoint: tuple[Path, Any]
) -> None:
    folder, peer = checkpoint
    with without_kernel() if attention == "torch" else contextlib.nullcontext():
        bare = Bare(load(folder, "static"), padded)
        # it takes 20 iterations, more than the context would leave to a row that ran on
        long, short = bare.open(prompts_of(90, 3), 20)
        bare.advance([long, short])
        for _ in range(19):
            text = list(short.ids)
            # the engine names those that advance first
            outcome = bare.advance([short, long], [1, 0])
            assert outcome.tokens == [[int(logits_of(peer, text)[-1].argmax())], []]


@modes
@pytest.mark.parametrize(("cut", "scored"), [(12, 0), (5, 3), (5, 8)])
def test_prompt_logprobs_are_those_of_the_whole_prompt_also_in_chunks(
    mode: str, cut: int, scored: int, checkpoint: tuple[Path, Any]
) -> None:
    """`scored` of them are known from before a preemption."""
    folder, peer = checkpoint
    prompt, neighbour = prompts_of(12, 20)
    bare = Bare(load(folder, mode), LAYOUTS[mode])
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
    expected = logits_of(peer, prompt).log_softmax(-1)
    assert list(found) == list(range(scored + 1, 12))
    for i, entry in found.items():
        assert entry.token == prompt[i]
        assert abs(entry.logprob - float(expected[i - 1, prompt[i]])) <= TOLERANCE
        assert entry.top[0][0] == int(expected[i - 1].argmax())
    (next_token,) = outcome.logprobs[0]
    assert abs(next_token.logprob - float(expected[-1].max())) <= TOLERANCE
    assert 1 not in outcome.prompt_logprobs


def test_gemma_in_float16_is_refused(checkpoints: dict[str, tuple[Path, Any]]) -> None:
    folder, _ = checkpoints["gemma3"]
    with pytest.raises(LoadError, match="its values exceed float16; allowed: auto"):
        load_model(LoadOptions("dynamic", str(folder), "cpu", "float16", 0, max_batch_size=2))
