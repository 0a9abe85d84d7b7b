"""Converts text to token ids and back: vocabularies, and text that grows while tokens arrive.

Runs in the thread that consumes the text. Independent of models, requests and HTTP, and never
imports torch, so tokens can be counted without a model.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING

from models.embedded.vocabulary import bytes_of_characters

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as HubTokenizer

SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTE_OF = bytes_of_characters()
_MARGIN_TOKENS = 64  # to which a cut in a word may matter
_WORD = re.compile(r"\w")
_SHIELD = "\ufdd0"  # a noncharacter: Unicode keeps it for such internal use


class EncodingError(ValueError):
    """A text or a conversation that cannot become tokens; the message says why."""


class Tokenizer:
    """A vocabulary in which every text has ids and every id has bytes. Special tokens in a text are
    plain text.

    `special_ids`: the tokens that only a template may write, and `flags` which blanks there belong
    to them. `bos_id`: begins every prompt.
    `composed`: how many characters of a text may become one before it is cut.
    `encode_rest`: as `encode`, for text that follows a special token, where that differs.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        token_of_id: Mapping[int, bytes],
        end_ids: Iterable[int],
        special_ids: Mapping[str, int] | None = None,
        *,
        flags: Mapping[str, AddedToken] | None = None,
        bos_id: int | None = None,
        encode_rest: Callable[[str], list[int]] | None = None,
        composed: int = 1,
    ) -> None:
        self._encode = encode
        self._encode_rest = encode_rest or encode
        self._token_of_id = token_of_id
        self.end_ids = frozenset(end_ids)  # any of these ends a text
        self.bos_id = bos_id
        self.special_ids = special_ids or {}
        self._flags = flags or {}
        names = sorted(filter(None, self.special_ids))
        self._special = re.compile(f"(?<!{_SHIELD})({longest_of(names)})") if names else None
        self.vocab_size = 1 + max(token_of_id)
        self._composed = composed

    def encode(self, text: str) -> list[int]:
        """Any `str`; half of a surrogate pair, which no UTF-8 can carry, becomes U+FFFD.
        Raises EncodingError."""
        return _encoded(self._encode, text)

    def encode_prompt(self, text: str) -> list[int]:
        """As `encode`, with the token that begins every prompt of this model, if there is one.
        Raises EncodingError."""
        return self.begun(self.encode(text))

    def begun(self, ids: list[int]) -> list[int]:
        """A prompt, with the token that begins every one."""
        return ids if self.bos_id is None else [self.bos_id, *ids]

    def encode_template(self, text: str) -> list[int]:
        """As `encode`, but special tokens in the text are special, except those that `shield` has
        marked. Raises EncodingError."""
        pieces = [text] if self._special is None else self._flagged(self._special.split(text))
        ids: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:  # split puts what matched between what did not
                ids.append(self.special_ids[piece])
            elif piece:
                encode = self._encode_rest if number else self._encode
                ids += _encoded(encode, piece.replace(_SHIELD, ""))
        return ids

    def _flagged(self, pieces: list[str]) -> list[str]:
        """Texts and special tokens in turns, with blanks and words as the tokens' flags say."""
        parts = pieces[:1]
        for name, after in zip(pieces[1::2], pieces[2::2], strict=True):
            flags = self._flags.get(name)
            if flags is None:
                parts += [name, after]
            elif flags.single_word and (_WORD.match(parts[-1][-1:]) or _WORD.match(after)):
                parts[-1] += name + after
            else:
                parts[-1] = parts[-1].rstrip() if flags.lstrip else parts[-1]
                parts += [name, after.lstrip() if flags.rstrip else after]
        return parts

    def shield(self, text: str) -> str:
        """A client's text on its way into a template: its special tokens stay plain text there."""
        text = text.replace(_SHIELD, "")
        if self._special is None:
            return text
        # before every character: one special token may be a part of another
        return self._special.sub(lambda name: _SHIELD + _SHIELD.join(name[0]), text)

    def least_tokens(self, text: str) -> int:
        """That it becomes, without reading it: as many as if all were the longest."""
        return len(text) // self._most_characters

    def head(self, text: str, tokens: int) -> str:
        """A beginning of the text that has at least these tokens, if the text does."""
        return text[: self._most_characters * (tokens + _MARGIN_TOKENS)]

    def tail(self, text: str, tokens: int) -> str:
        """An end of the text that has at least these tokens, if the text does."""
        return text[-self._most_characters * (tokens + _MARGIN_TOKENS) :]

    @cached_property
    def _most_characters(self) -> int:
        """Of a text that become one token."""
        return self._composed * max(map(len, self._token_of_id.values()))

    @property
    def spellings(self) -> list[bytes]:
        """The bytes of all ids; empty where the vocabulary has no token."""
        return [self._token_of_id.get(token, b"") for token in range(self.vocab_size)]

    def prompt_bytes(self, tokens: Iterable[int]) -> Iterator[bytes]:
        """What each token of a prompt is of the client's text. The token that begins every prompt
        is nothing of it, nor is a space that the vocabulary puts before a text."""
        first = True
        for number, token in enumerate(tokens):
            if number == 0 and token == self.bos_id:
                yield b""
                continue
            piece = self.token_bytes(token)
            yield piece.removeprefix(b" ") if first and self._puts_space else piece
            first = False

    @cached_property
    def _puts_space(self) -> bool:
        return b"".join(map(self.token_bytes, self._encode("a"))) == b" a"

    def token_bytes(self, token: int) -> bytes:
        """Ids that the vocabulary lacks, as a larger model may generate, read `<|id|>`."""
        return self._token_of_id.get(token) or b"<|%d|>" % token


def encoder(hub: HubTokenizer) -> Callable[[str], list[int]]:
    """The ids of plain text. As a batch of one: `encode` holds the interpreter's lock, and 900,000
    digits take it 1.3 s."""
    # a batch of one gains nothing from the library's threads, which do not survive a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return lambda text: hub.encode_batch_fast([text], add_special_tokens=False)[0].ids


def byte_level(text: str) -> bytes:
    """The bytes of a token: each character is one; a text with others, as many added tokens have,
    is itself."""
    if all(character in _BYTE_OF for character in text):
        return bytes(_BYTE_OF[character] for character in text)
    return text.encode()


def sentencepiece(text: str) -> bytes:
    """The bytes of a token: `<0xNN>` is a byte; all else is text with a sign for spaces."""
    if byte := _BYTE.fullmatch(text):
        return bytes.fromhex(byte[1])
    return text.replace(SPACE, " ").encode()


def longest_of(names: Sequence[str]) -> str:
    """A pattern of the longest of these names, which are sorted. At each character it takes one
    branch, where an alternation of all would try each of Gemma's 6,250 names."""
    branches = []
    for _, group in groupby(filter(None, names), key=itemgetter(0)):
        alike = list(group)
        pairs = zip(alike[0], alike[-1], strict=False)  # between them all others are sorted
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        branches.append(
            re.escape(alike[0][:common]) + longest_of([name[common:] for name in alike])
        )
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'' if names[0] else '?'}"


def _encoded(encode: Callable[[str], list[int]], text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    try:
        return encode(text)
    except Exception:
        raise
    except BaseException as error:
        # tiktoken panics (no Exception: it would end the worker) where GPT-2's pattern meets
        # about a million spaces
        raise EncodingError(
            f"the tokenizer failed on {len(text)} characters; shorten runs of spaces"
        ) from error


class Detokenizer:
    """Text of a sequence that grows. The pieces joined are the text of the whole: bytes that may
    yet become a character are held back, those that cannot are U+FFFD."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, tokens: Iterable[int]) -> str:
        return self.decode(b"".join(map(self._tokenizer.token_bytes, tokens)))

    def finish(self) -> str:
        return self.decode(b"", final=True)
