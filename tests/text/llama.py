"""llama.cpp's tokenizer, and vocabularies small enough to be recorded with its ids.

`python -m tests.text.llama` writes the recordings, with llama.cpp in the environment that
`benchmarks.peers` makes for it. That needs a compiler, so the default tests read what it wrote.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import models, pre_tokenizers, trainers

from tests.peers import asked
from tests.text.strings import CHOSEN, mixed
from text.spelling import SPACE

FOLDER = Path(__file__).parent / "recorded"
TEXTS = [*CHOSEN, *mixed(30, seed=7)]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
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


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Of a GGUF file, by the package that its authors publish."""
    fields = gguf.GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items()}


def named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """As the names of GGUF's metadata."""
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def write_gguf(
    fields: Mapping[str, Any], path: Path, others: Mapping[str, Any] | None = None
) -> None:
    """A file that contains a vocabulary and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    add_fields(writer, {**named(fields), **(others or {})})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


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


def byte_level() -> dict[str, Any]:
    hub = HubTokenizer(models.BPE())
    hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = _trained(hub, 500, pre_tokenizers.ByteLevel.alphabet())
    pieces.remove("</s>")  # which llama.cpp takes for a control token in every vocabulary
    tokens = list(dict.fromkeys([*CONTROLS, *pieces, *WHOLE]))
    merges = [
        f"{left} {right}"
        for left, right in json.loads(hub.to_str())["model"]["merges"]
        if left + right in pieces
    ]
    return {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": _types(tokens),
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }


def sentencepiece() -> dict[str, Any]:
    hub = HubTokenizer(models.BPE())
    texts = [text.replace(" ", SPACE) for text in TEXTS]
    pieces = _trained(hub, 400, [SPACE], texts)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    head = len(tokens)
    # llama.cpp joins <s> from a text's own characters where a part of it is a token; here that is
    # the one deliberate difference
    pieces = [piece for piece in pieces if piece in "<>" or not set(piece) & set("<>\0")]
    tokens = list(dict.fromkeys([*tokens, *pieces, *WHOLE]))
    return {
        "model": "llama",
        "tokens": tokens,
        "token_type": [UNKNOWN, CONTROL, CONTROL, *_types(tokens[3:])],
        "scores": [0.0] * head + [-float(rank) for rank in range(len(tokens) - head)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
    }


def _trained(
    hub: HubTokenizer, size: int, alphabet: Sequence[str], texts: Sequence[str] = TEXTS
) -> list[str]:
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False, max_token_length=8
    )
    hub.train_from_iterator(texts, trainer)
    vocabulary = hub.get_vocab()
    return sorted(vocabulary, key=lambda token: vocabulary[token])


def _types(tokens: Sequence[str]) -> list[int]:
    return [
        CONTROL if token in CONTROLS
        else USER_DEFINED if token in WHOLE
        else BYTE if token.startswith("<0x")
        else NORMAL
        for token in tokens
    ]  # fmt: skip


def record() -> None:
    FOLDER.mkdir(exist_ok=True)
    for kind, fields, variants in (
        ("byte-level", byte_level(), BYTE_LEVEL),
        ("sentencepiece", sentencepiece(), SENTENCEPIECE),
    ):
        lines = [f'"fields": {json.dumps(fields)}']
        for name, changes in variants.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "vocabulary.gguf"
                write_gguf({**fields, **changes}, path)
                for special in (False, True):
                    ids = llama_ids(path, TEXTS, special=special)
                    of = f"{name}{', special' if special else ''}"
                    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in ids)
                    lines.append(f'"{of}": [\n{rows}\n]')
        (FOLDER / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def record_smollm2(path: Path) -> None:
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in llama_ids(path, CHOSEN))
    (FOLDER / "smollm2.json").write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    record()
