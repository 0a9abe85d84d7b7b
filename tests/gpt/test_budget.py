"""The KV budget: what is asked for, and its arithmetic in the log."""

from __future__ import annotations

import logging

import psutil
import pytest
import torch

from gpt.budget import KVMemoryError, asked_tokens, cpu_tokens
from gpt.cache import KVShape

SHAPE = KVShape(24, 16, 64, torch.bfloat16, torch.device("cpu"))  # 98,304 bytes a token


@pytest.mark.parametrize(
    ("amount", "tokens"),
    [
        ("30000tokens", 30_000),
        ("2GiB", 2 * 2**30 // 98_304),
        ("1.5GiB", 3 * 2**29 // 98_304),
        ("500MB", 500_000_000 // 98_304),
        ("9830400B", 100),
    ],
)
def test_an_amount_is_read_as_tokens_and_told(
    amount: str, tokens: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert asked_tokens(amount, SHAPE) == tokens
    assert f"--kv-memory {amount}, at 98304 bytes a token: {tokens} tokens" in caplog.text


@pytest.mark.parametrize("amount", ["2", "GiB", "2gib", "-1GiB", "1e9B", "two tokens", ""])
def test_an_amount_that_cannot_be_read_is_told_with_what_can(amount: str) -> None:
    with pytest.raises(KVMemoryError, match="allowed: auto, or a number with one of B, KB"):
        asked_tokens(amount, SHAPE)


def test_less_than_the_warm_up_takes_is_refused() -> None:
    with pytest.raises(KVMemoryError, match="holds 10 tokens of 98304 bytes; allowed: 16 tokens"):
        asked_tokens("1MB", SHAPE)


def test_a_cpu_gives_what_the_batch_limit_needs_or_a_quarter_of_what_is_available() -> None:
    assert cpu_tokens(SHAPE, 1000) == 1000
    total = psutil.virtual_memory().total // SHAPE.token_bytes
    assert cpu_tokens(SHAPE, 10 * total) <= total / 4
