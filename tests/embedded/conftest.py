"""The shipped model and its encoding, loaded once."""

from __future__ import annotations

import pytest
import tiktoken

from embedded.vocabulary import FOLDER, load_embedded_encoding
from models.gpt2 import GPT
from models.weights.checkpoint import load_checkpoint


@pytest.fixture(scope="session")
def encoding() -> tiktoken.Encoding:
    return load_embedded_encoding()


@pytest.fixture(scope="session")
def network() -> GPT:
    return load_checkpoint(FOLDER).eval().requires_grad_(False)
