"""llama.cpp's tokenizer, and vocabularies small enough to be recorded with its ids.

`python -m tests.text.llama` records them again, with llama.cpp in the environment that
`benchmarks.peers` makes for it. That needs a compiler, so the default tests read what it wrote.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models.gguf_files import finish
from tests.peers import asked
from tests.text.strings import CHOSEN, mixed

FOLDER = Path(__file__).parent / "recorded"
TEXTS = [*CHOSEN, *mixed(30, seed=7)]
WHOLE = ["<table>", "\n\n", "\n\n\n", "[INST]"]  # taken from any text as they are

PROGRAM = """
import json, sys
from llama_cpp import Llama
path, texts, special = json.load(sys.stdin)
model = Llama(path, vocab_only=True, verbose=False)
ids = [model.tokenize(text.encode(), add_bos=False, special=special) for text in texts]
print(json.dumps(ids))
"""

# name -> what of the metadata differs
BYTE_LEVEL: dict[str, dict[str, Any]] = {
    name: {"pre": name}
    for name in ("gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "default")
}
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma": {"add_space_prefix": False},
}
VARIANTS = {"byte-level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}


@functools.cache
def recorded(kind: str) -> dict[str, Any]:
    """The metadata as `fields`, and llama.cpp's ids of TEXTS for each variant."""
    return dict(json.loads((FOLDER / f"{kind}.json").read_text()))


def named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """As the names of GGUF's metadata."""
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def write_gguf(
    fields: Mapping[str, Any], path: Path, others: Mapping[str, Any] | None = None
) -> None:
    """A file that contains a vocabulary and one tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    add_fields(writer, {**named(fields), **(others or {})})
    writer.add_tensor("a.weight", np.zeros((3, 2), np.float32))
    finish(writer)


def add_fields(writer: gguf.GGUFWriter, metadata: Mapping[str, Any]) -> None:
    for name, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_string(name, value)


def llama_ids(path: Path | str, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
    """`special`: special tokens in the text are special."""
    ids: list[list[int]] = asked("llamacpp", PROGRAM, [str(path), list(texts), special])
    return ids


def record() -> None:
    for kind, variants in VARIANTS.items():
        fields = recorded(kind)["fields"]
        found: dict[str, Any] = {"fields": fields}
        for name, changes in variants.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "vocabulary.gguf"
                write_gguf({**fields, **changes}, path)
                found[name] = llama_ids(path, TEXTS)
                found[f"{name}, special"] = llama_ids(path, TEXTS, special=True)
        lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
        (FOLDER / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
