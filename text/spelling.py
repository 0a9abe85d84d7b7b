"""The bytes of a token from the text by which a vocabulary lists it."""

from __future__ import annotations

import re

from embedded.vocabulary import bytes_of_characters

SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTE_OF = bytes_of_characters()


def byte_level(text: str) -> bytes:
    """Each character is a byte; a text with others, as many added tokens have, is itself."""
    if all(character in _BYTE_OF for character in text):
        return bytes(_BYTE_OF[character] for character in text)
    return text.encode()


def sentencepiece(text: str) -> bytes:
    """`<0xNN>` is a byte; all else is text with a sign for spaces."""
    if found := _BYTE.fullmatch(text):
        return bytes.fromhex(found[1])
    return text.replace(SPACE, " ").encode()
