"""Converts text to token ids and back: vocabularies, and text that grows while tokens arrive.

Runs in the thread that consumes the text. Independent of models, requests and HTTP, and never
imports torch, so tokens can be counted without a model.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tiktoken

from embedded.vocabulary import END_OF_TEXT, VOCABULARY_FILE, load_embedded_encoding
from seams import RANDOM_PREFIX

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")

_ALLOWED = (
    f"embedded, {', '.join(HUB_NAMES)}, {RANDOM_PREFIX}NAME with one of these names, or a folder "
    "in the Hugging Face layout"
)
_FOLDER_ALLOWED = (
    f"{VOCABULARY_FILE} (as embedded/train.py writes it), tokenizer.json, or vocab.json with "
    "merges.txt"
)


class VocabularyError(Exception):
    """A vocabulary that cannot be loaded; the message says what was found and what is allowed."""


class EncodingError(ValueError):
    """A text that the vocabulary's library cannot cut into tokens."""


class Tokenizer:
    """A byte-level vocabulary. Every text has ids and every id has bytes; special tokens in a
    text are plain text."""

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        token_of_id: Mapping[int, bytes],
        end_ids: Iterable[int],
        special_ids: Mapping[str, int] | None = None,
    ) -> None:
        self._encode = encode
        self._token_of_id = token_of_id
        self.end_ids = frozenset(end_ids)  # any of these ends a text
        self.special_ids = special_ids or {}
        names = sorted(self.special_ids, key=len, reverse=True)
        either = "|".join(map(re.escape, names))
        self._special = re.compile(f"(?<!{_SHIELD})({either})") if names else None
        self.vocab_size = 1 + max(token_of_id)

    def encode(self, text: str) -> list[int]:
        """Any `str`; half of a surrogate pair, which no UTF-8 can carry, becomes U+FFFD.
        Raises EncodingError."""
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        try:
            return self._encode(text)
        except Exception:
            raise
        except BaseException as error:
            # tiktoken panics (no Exception: it would end the worker) where GPT-2's pattern meets
            # about a million spaces
            raise EncodingError(
                f"the tokenizer failed on {len(text)} characters; shorten runs of spaces"
            ) from error

    def encode_template(self, text: str) -> list[int]:
        """As `encode`, but special tokens in the text are special, except those that
        `shield` has marked. Raises EncodingError."""
        pieces = [text] if self._special is None else self._special.split(text)
        ids = []
        for number, piece in enumerate(pieces):
            if number % 2:  # split puts what matched between what did not
                ids.append(self.special_ids[piece])
            elif piece:
                ids += self.encode(piece.replace(_SHIELD, ""))
        return ids

    def shield(self, text: str) -> str:
        """A client's text on its way into a template: its special tokens stay plain text there."""
        text = text.replace(_SHIELD, "")
        if self._special is None:
            return text
        # before every character: one special token may be a part of another
        return self._special.sub(lambda found: _SHIELD + _SHIELD.join(found[0]), text)

    def token_bytes(self, token: int) -> bytes:
        """Ids that the vocabulary lacks, as a larger model may generate, read `<|id|>`."""
        return self._token_of_id.get(token) or b"<|%d|>" % token


_SHIELD = "\ufdd0"  # a noncharacter: Unicode keeps it for such internal use


class Detokenizer:
    """Text of a sequence that grows. The pieces joined are the text of the whole: bytes that may
    yet become a character are held back, those that cannot are U+FFFD."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Iterable[int]) -> str:
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, tokens)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class StopFinder:
    """Text that ends where the first of `stops` begins. First is the one that is complete first;
    of those complete at the same character, the longest. What may yet become a stop string is
    held back, so the pieces joined are the same however the text was cut."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that certainly precedes any stop string."""
        if self.found or not (self._stops and text):
            return "" if self.found else text
        text = self._held + text
        ends = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if ends:
            self.found = True
            safe = min(ends)[1]
        else:
            safe = min(_begins(text, stop) for stop in self._stops)
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """The rest, when no more text will come."""
        return "" if self.found else self._held


def _begins(text: str, stop: str) -> int:
    """Where at the end of `text` a part of `stop` begins; the length of the text if nowhere."""
    for start in range(max(0, len(text) - len(stop) + 1), len(text)):
        if stop.startswith(text[start:]):
            return start
    return len(text)


def load_tokenizer(model: str) -> Tokenizer:
    """The vocabulary of what `--model` names. Raises VocabularyError."""
    if (folder := folder_of(model)) is not None:
        if not folder.is_dir():
            raise VocabularyError(
                f"model '{model}' is neither a folder nor a known name; allowed: {_ALLOWED}"
            )
        return _from_folder(folder)
    if model in HUB_NAMES:
        return _from_tiktoken(_download_gpt2(model))
    if model != "embedded" and model.removeprefix(RANDOM_PREFIX) not in HUB_NAMES:
        raise VocabularyError(
            f"model '{model}' is unknown; {RANDOM_PREFIX}NAME allows {', '.join(HUB_NAMES)}"
        )
    return _from_tiktoken(_read(load_embedded_encoding, "the embedded vocabulary"))


def folder_of(model: str) -> Path | None:
    """The folder that `--model` names; None for a name that is known."""
    if model == "embedded" or model in HUB_NAMES or model.startswith(RANDOM_PREFIX):
        return None
    return Path(model).expanduser()


def _read(load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except Exception as error:  # each format's library raises kinds of its own, some undocumented
        raise VocabularyError(f"{what} cannot be read: {error}") from error


def _from_tiktoken(encoding: tiktoken.Encoding) -> Tokenizer:
    table = {}
    for token in range(encoding.n_vocab):
        try:
            table[token] = encoding.decode_single_token_bytes(token)
        except KeyError:
            continue  # ids may have gaps
    specials = {name: encoding.encode_single_token(name) for name in encoding.special_tokens_set}
    return Tokenizer(encoding.encode_ordinary, table, [encoding.eot_token], specials)


def _download_gpt2(model: str) -> tiktoken.Encoding:
    try:
        return tiktoken.get_encoding("gpt2")
    except Exception as error:  # whatever its HTTP library raises means the same here
        raise VocabularyError(
            f"the vocabulary of '{model}' could not be downloaded ({error}). Without a connection "
            f"use --model embedded (ships with the project), --model {RANDOM_PREFIX}{model} "
            "(random weights of that shape, to measure speed), or --model FOLDER"
        ) from error


def _from_folder(folder: Path) -> Tokenizer:
    if (path := folder / VOCABULARY_FILE).exists():
        return _from_tiktoken(_read(lambda: load_embedded_encoding(folder), str(path)))
    # imported here: the other vocabularies should not wait for it
    from tokenizers import Tokenizer as HubTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if (path := folder / "tokenizer.json").exists():
        kinds = _read(lambda: _kinds(path), str(path))
        if kinds != ["BPE", "ByteLevel"]:
            raise VocabularyError(
                f"{path}: model and decoder are {kinds[0]} and {kinds[1]}; allowed: BPE and "
                "ByteLevel"
            )
        hub = _read(lambda: HubTokenizer.from_file(str(path)), str(path))
        hub.no_truncation()
        hub.no_padding()
        hub.encode_special_tokens = True  # as plain text
    elif vocab.exists() and merges.exists():
        bpe = _read(lambda: models.BPE.from_file(str(vocab), str(merges)), f"{vocab}, {merges}")
        hub = HubTokenizer(bpe)
        hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        hub.decoder = decoders.ByteLevel()
    else:
        raise VocabularyError(f"{folder} contains no vocabulary; allowed: {_FOLDER_ALLOWED}")
    added = {token: entry.content for token, entry in hub.get_added_tokens_decoder().items()}
    byte_of = bytes_of_characters()
    table = {}
    for text, token in hub.get_vocab(with_added_tokens=True).items():
        if token in added or not all(character in byte_of for character in text):
            table[token] = text.encode()
        else:
            table[token] = bytes(byte_of[character] for character in text)
    return Tokenizer(
        lambda text: hub.encode(text, add_special_tokens=False).ids,
        table,
        _end_ids(folder, hub.token_to_id),
        {text: token for token, text in added.items()},
    )


def _end_ids(folder: Path, id_of: Callable[[str], int | None]) -> set[int]:
    """The tokens that end a text: all that the checkpoint's files name, and where they name none,
    `<|endoftext|>`. Of `generation_config.json` and `config.json` the first that names one counts,
    as in `transformers`."""
    text = _setting(folder / "tokenizer_config.json", "eos_token")
    if isinstance(text, dict):  # with properties of the token
        text = text.get("content")
    ids = _setting(folder / "generation_config.json", "eos_token_id")
    if ids is None:
        ids = _setting(folder / "config.json", "eos_token_id")
    ids = ids if isinstance(ids, list) else [ids]
    named = {token for token in ids if type(token) is int}
    if isinstance(text, str) and (token := id_of(text)) is not None:
        named.add(token)
    return named or {token for token in [id_of(END_OF_TEXT)] if token is not None}


def _setting(path: Path, name: str) -> Any:
    """Of a JSON file that may be absent. Raises VocabularyError."""
    if not path.exists():
        return None
    return _read(lambda: dict(json.loads(path.read_text(encoding="utf-8"))), str(path)).get(name)


def _kinds(path: Path) -> list[str | None]:
    """Types of model and decoder in a `tokenizer.json`."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    return [(fields.get(part) or {}).get("type") for part in ("model", "decoder")]


def bytes_of_characters() -> dict[str, int]:
    """GPT-2's table of visible characters for bytes: printable ones represent themselves, the
    others are the characters from U+0100 on (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }
