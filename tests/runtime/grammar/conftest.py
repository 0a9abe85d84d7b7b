"""The embedded model's vocabulary, and texts of a grammar, token by token, without a model: the
next one is any that its mask allows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from models.names import EMBEDDED
from runtime.grammar.grammars import Compiled, Grammars
from runtime.grammar.matching import Matching, MatchingAhead
from seams import Constraint
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

Choose = Callable[[Sequence[int]], int]
CLOSING = (b'"', b"]", b"}")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="session")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(lambda: tokenizer)


def mask_of(place: Matching | MatchingAhead, vocab_size: int) -> NDArray[np.bool_]:
    """Of a network that is wider than the vocabulary."""
    bits = np.zeros(-(-vocab_size // 32) + 2, np.int32)
    place.fill(bits.ctypes.data)
    return np.unpackbits(bits.view(np.uint8), bitorder="little").astype(bool)


def allowed(matching: Matching, vocab_size: int) -> list[int]:
    tokens: list[int] = np.flatnonzero(mask_of(matching, vocab_size)).tolist()
    return tokens


def walk(
    grammars: Grammars,
    tokenizer: Tokenizer,
    constraint: Constraint,
    choose: Choose,
    most: int = 300,
    *,
    alone: bool = False,
) -> list[int]:
    """Tokens up to an end, or `most`. Raises AssertionError if the grammar fails."""
    matching, ids = Matching(grammars, constraint, ()), list[int]()
    while len(ids) < most:
        tokens = allowed(matching, tokenizer.vocab_size)
        assert matching.error is None, matching.error
        assert tokens
        ids += matching.take(choose(tokens), alone=alone)
        assert matching.error is None, matching.error
        if ids[-1] in tokenizer.end_ids:
            break
    return ids


def shortest(tokenizer: Tokenizer, seed: int) -> Choose:
    """Chooses what is likely to end the text soon, and otherwise anything."""
    drawn = random.Random(seed)

    def choose(tokens: Sequence[int]) -> int:
        ends = [token for token in tokens if token in tokenizer.end_ids]
        closing = [token for token in tokens if tokenizer.token_bytes(token).strip() in CLOSING]
        soon = ends or closing if drawn.random() < 0.6 else []
        return drawn.choice(soon or tokens)

    return choose


def of_bytes() -> Tokenizer:
    """A token for each byte, and an end."""
    tokens = {i: bytes([i]) for i in range(256)} | {256: b"<end>"}
    return Tokenizer(lambda text: list(text.encode()), tokens, [256])


def takes(compiled: Compiled, text: str) -> bool:
    """Whether the whole text is a value; of a grammar over bytes."""
    matcher, ids = compiled.matcher.deep_copy(), list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Without the end token."""
    kept = [token for token in ids if token not in tokenizer.end_ids]
    return b"".join(map(tokenizer.token_bytes, kept)).decode()
