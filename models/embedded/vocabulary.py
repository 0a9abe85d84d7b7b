"""The embedded model's vocabulary: byte-level BPE in tiktoken's format.

Turns text into ids for the embedded model, in serving and in training. Independent of torch, of the
corpus and of how the ranks were found (`training.py`).
"""

from __future__ import annotations

import base64
from pathlib import Path

import tiktoken

FOLDER = Path(__file__).resolve().parent
VOCABULARY_FILE = "vocab.tiktoken"
END_OF_TEXT = "<|endoftext|>"  # separates documents in training; its id is the number of ranks

# Text is cut into these pieces before merging; every character falls into exactly one of them.
# Indentation is one piece of its own, and newlines are never merged with it, so that a prompt
# that ends in a newline continues with the indentation token that training saw there.
# Brackets and dots never merge with the word after them, for the same reason.
PATTERN = "|".join(
    (
        r" ?[\p{L}_]+",  # words and identifiers, with the space before them
        r" ?\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}_]+",  # operators, brackets, quotes
        r"\n+",
        r"[^\S\n]+",  # indentation and other white space within a line
    )
)


def load_embedded_encoding(folder: Path = FOLDER) -> tiktoken.Encoding:
    """The encoding with the ranks in `folder`; OSError if the file is missing.

    tiktoken's file format: one line per token, its bytes in base64, a space, its rank. Does not use
    `tiktoken.load`, which caches by path and would return a stale vocabulary after retraining.
    """
    pairs = (line.split() for line in (folder / VOCABULARY_FILE).read_bytes().splitlines())
    return make_encoding({base64.b64decode(token): int(rank) for token, rank in pairs})


def make_encoding(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        name="embedded",
        pat_str=PATTERN,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: len(ranks)},
    )


def write_ranks(ranks: dict[bytes, int], path: Path) -> None:
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    path.write_bytes(b"".join(lines))


def bytes_of_characters() -> dict[str, int]:
    """GPT-2's table of visible characters for bytes: printable ones represent themselves, the
    others are the characters from U+0100 on (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }
