"""The bytes of a token from the text by which a vocabulary lists it."""

from __future__ import annotations

from embedded.vocabulary import bytes_of_characters

SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE_OF = bytes_of_characters()


def byte_level(text: str) -> bytes:
    """Each character is a byte; a text with others, such as an added token's, is itself."""
    if all(character in _BYTE_OF for character in text):
        return bytes(_BYTE_OF[character] for character in text)
    return text.encode()


def sentencepiece(text: str) -> bytes:
    """`<0xNN>` is a byte; all else is text with a sign for spaces."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode()
