"""The embedded model's vocabulary, and what is compiled for it."""

from __future__ import annotations

import pytest

from models.names import EMBEDDED
from runtime.grammar.grammars import Grammars
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)


@pytest.fixture(scope="session")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(lambda: tokenizer)
