"""Masks are the same, to the bit, however they are computed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer
from numpy.typing import NDArray

from models.names import EMBEDDED
from requested import Constraint
from runtime.grammar.constraints import of_schema
from runtime.grammar.grammars import Grammars
from runtime.grammar.matching import Matching
from runtime.grammar.vocabulary import SLICES
from tests.runtime.grammar.schemas import schemas
from tests.support.hash_app import byte_tokenizer
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

PATTERNS = ["[A-Za-z0-9 ,.]+", "[a-z ]{1,30}", r"(\w+ ){1,9}", "[^aeiou]{3,}", ".*x.{4}"]
constraints = st.sampled_from(schemas()).map(of_schema) | st.sampled_from(PATTERNS).map(
    lambda pattern: Constraint("regex", pattern)
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="module")
def both(tokenizer: Tokenizer) -> tuple[Grammars, Grammars]:
    """With slices, and looking at every token."""
    sliced, plain = Grammars(lambda: tokenizer), Grammars(lambda: tokenizer)
    assert plain.loaded.tokenizer is not None
    without = plain.loaded.tokenizer.with_slices([])
    plain._loaded = dataclasses.replace(plain.loaded, tokenizer=without)
    return sliced, plain


def mask_of(matching: Matching, vocab_size: int) -> NDArray[np.int32]:
    bits = np.zeros(-(-vocab_size // 32), np.int32)
    matching.fill(bits.ctypes.data)
    return bits


@given(constraints, st.data())
def test_slices_change_no_mask(both, tokenizer, constraint, data) -> None:  # type: ignore[no-untyped-def]
    sliced, plain = (Matching(grammars, constraint, ()) for grammars in both)
    for _ in range(20):
        mask = mask_of(sliced, tokenizer.vocab_size)
        assert np.array_equal(mask, mask_of(plain, tokenizer.vocab_size))
        tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(tokens[data.draw(st.integers(0, len(tokens) - 1))])
        assert sliced.take(token, alone=False) == plain.take(token, alone=False)
        if sliced.error is not None or token in tokenizer.end_ids:
            break


def test_the_slices_are_distinct_from_those_of_the_library() -> None:
    assert not set(SLICES) & set(LLTokenizer.general_slices())


def test_ends_for_which_the_vocabulary_has_no_token_are_left_out() -> None:
    """A server must start with such a model, as it does without constraints."""
    tokenizer = byte_tokenizer()
    own = tokenizer.end_ids
    tokenizer.end_ids = own | {tokenizer.vocab_size, 100_000}  # type: ignore[misc]
    assert Grammars(lambda: tokenizer).loaded.ends == sorted(own)
    tokenizer.end_ids = frozenset({100_000})  # type: ignore[misc]
    assert Grammars(lambda: tokenizer).loaded.tokenizer is None
