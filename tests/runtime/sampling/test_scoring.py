"""Logprobs of an iteration's tokens, all rows together."""

from __future__ import annotations

import torch

from runtime.sampling.scoring import CHUNK, Wanted, in_words, numbers_of, score_all
from runtime.transfer import send

CPU = torch.device("cpu")


def test_logprobs_are_those_of_the_plain_softmax_in_any_number_of_chunks() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(2 * CHUNK + 20, 8), torch.nn.Linear(8, 9)
    long, short = torch.randint(9, (2 * CHUNK,)).tolist(), [4, 0, 3]
    wanted = [Wanted(0, 1, 2, long, 3), Wanted(2, 1, 2 * CHUNK + 10, short, 1)]
    with torch.no_grad():
        places, scored = send(numbers_of(wanted), CPU)
        found = score_all(places, scored, 3, hidden, head)
        expected = head(hidden).log_softmax(-1)
    for (_, _, at, tokens, alternatives), words in zip(
        wanted, in_words(wanted, [tensor.numpy() for tensor in found]), strict=True
    ):
        for place, token, word in zip(range(at, at + len(tokens)), tokens, words, strict=True):
            assert word.token == token
            assert abs(word.logprob - float(expected[place, token])) < 1e-6
            best = expected[place].sort(descending=True).indices[:alternatives]
            assert [id for id, _ in word.top] == best.tolist()
