from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.names import EMBEDDED
from tests.models.families import gpt2, write
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small random GPT-2, and `transformers`' model of it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, write(gpt2(), folder)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(EMBEDDED)
