"""What `--model` may name, without torch: names and paths."""

from __future__ import annotations

import re
from pathlib import Path

from seams import RANDOM_PREFIX

EMBEDDED = "embedded"
GPT2_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def local_path(model: str) -> Path | None:
    """The folder or the GGUF file that `--model` names, which need not exist; None for a name."""
    if model == EMBEDDED or model in GPT2_NAMES or model.startswith(RANDOM_PREFIX):
        return None
    path = Path(model).expanduser()
    return path if path.exists() or not _OF_HUB.fullmatch(model) else None
