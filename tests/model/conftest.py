from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.families import gpt2, write


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small random GPT-2, and `transformers`' model of it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, write(gpt2(), folder)
