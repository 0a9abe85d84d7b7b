"""The bytes of a token from the text by which a vocabulary lists it."""

from __future__ import annotations

SPACE = "\u2581"  # SentencePiece's sign for a space


def bytes_of_characters() -> dict[str, int]:
    """GPT-2's table of visible characters for bytes: printable ones represent themselves, the
    others are the characters from U+0100 on (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


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
