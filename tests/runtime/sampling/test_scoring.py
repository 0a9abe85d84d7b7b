"""Logprobs of an iteration's tokens, all rows together."""

from __future__ import annotations

import pytest
import torch

import runtime.sampling.scoring
from runtime.sampling.scoring import Targets, flattened, logprobs_by_row, score_all
from runtime.transfer import send

CHUNK = 20  # positions
CPU = torch.device("cpu")


def test_logprobs_are_those_of_the_plain_softmax_in_any_number_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime.sampling.scoring, "CHUNK_LOGITS", CHUNK * 9)
    torch.manual_seed(0)
    hidden, head = torch.randn(2 * CHUNK + 20, 8), torch.nn.Linear(8, 9)
    long, short = torch.randint(9, (2 * CHUNK,)).tolist(), [4, 0, 3]
    targets = [Targets(0, 1, 2, long, 3), Targets(2, 1, 2 * CHUNK + 10, short, 1)]
    with torch.no_grad():
        places, scored = send(flattened(targets), CPU)
        found = score_all(places, scored, 3, hidden, head, 9)
        expected = head(hidden).log_softmax(-1)
    for (_, _, at, tokens, alternatives), words in zip(
        targets, logprobs_by_row(targets, [tensor.numpy() for tensor in found]), strict=True
    ):
        for place, token, word in zip(range(at, at + len(tokens)), tokens, words, strict=True):
            assert word.token == token
            assert abs(word.logprob - float(expected[place, token])) < 1e-6
            best = expected[place].sort(descending=True).indices[:alternatives]
            assert [id for id, _ in word.top] == best.tolist()
