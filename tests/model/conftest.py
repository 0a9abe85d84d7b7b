from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GPT2LMHeadModel

from tests.model.peer import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GPT2LMHeadModel]:
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, make_checkpoint(folder)
