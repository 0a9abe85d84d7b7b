"""The training text of the embedded model, and the vocabulary that is found in it.

The text is the running Python's own standard library: the same Python gives the same files in the
same order with the same split. The ranks are those of byte-level BPE (Sennrich et al., ACL '16).
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from models.embedded.vocabulary import PATTERN, bytes_of_characters

# Not part of Python, Python 2, machine-specific, or tables and generated text, not source.
EXCLUDED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
    "encodings",
    "pydoc_data",
}
EXCLUDED_PREFIXES = ("config-", "_sysconfigdata")
HELD_OUT_SHARE = 20  # one file in this many


@dataclass(frozen=True, slots=True)
class Corpus:
    training: tuple[str, ...]  # texts of files, ordered by relative path
    held_out: tuple[str, ...]
    sha256: str  # of all paths and texts


def stdlib_folder() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def read_corpus(folder: Path) -> Corpus:
    """All Python files below `folder`; ValueError if there are no training or held-out texts."""
    training: list[str] = []
    held_out: list[str] = []
    digest = hashlib.sha256()
    for path, text in _sources(folder):
        digest.update(f"{path}\0{text}\0".encode())
        (held_out if is_held_out(path) else training).append(text)
    if not training or not held_out:
        raise ValueError(f"too few Python files below {folder} to split into two sets")
    return Corpus(tuple(training), tuple(held_out), digest.hexdigest())


def is_held_out(path: str) -> bool:
    """By a hash of the path, so that a file's set does not depend on other files."""
    return int(hashlib.sha256(path.encode()).hexdigest(), 16) % HELD_OUT_SHARE == 0


def _sources(folder: Path) -> Iterator[tuple[str, str]]:
    """(relative path, text) of each source, skipping the few test files that are not UTF-8."""
    paths = {path.relative_to(folder): path for path in folder.rglob("*.py")}
    for relative, path in sorted(paths.items(), key=lambda item: item[0].as_posix()):
        parts = relative.parts
        if EXCLUDED_FOLDERS.intersection(parts) or parts[0].startswith(EXCLUDED_PREFIXES):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield relative.as_posix(), text


def train_ranks(texts: Iterable[str], size: int) -> dict[bytes, int]:
    """Token bytes -> rank: the 256 bytes first, then merges in the order in which they were found.

    ValueError if there is too little text for `size` ranks.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = bytes_of_characters()
    found = tokenizer.get_vocab()
    tokens = [bytes(byte_of[c] for c in token) for token in sorted(found, key=found.__getitem__)]
    merged = [token for token in tokens if len(token) > 1]
    ranks = {token: rank for rank, token in enumerate([bytes([b]) for b in range(256)] + merged)}
    if len(ranks) != size:
        raise ValueError(f"the corpus yields {len(ranks)} tokens, not {size}: too little text")
    return ranks
