"""Loads the vocabulary of what `--model` names.

A folder in the Hugging Face layout has `tokenizer.json`, or `vocab.json` with `merges.txt`; the
embedded model has ranks of its own; a GGUF file has its vocabulary inside
(`text/gguf_vocabulary.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiktoken

from embedded.vocabulary import END_OF_TEXT, VOCABULARY_FILE, load_embedded_encoding
from models.fetch import FetchError, locate
from models.names import EMBEDDED, GPT2_NAMES, RANDOM_NAMES, RANDOM_PREFIX
from models.weights.gguf_header import GGUFError, read_header
from text import spelling
from text.tokenizer import Tokenizer, VocabularyError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer

_FOLDER_ALLOWED = (
    f"{VOCABULARY_FILE} (as embedded/train.py writes it), tokenizer.json, or vocab.json with "
    "merges.txt"
)


def load_tokenizer(model: str, revision: str | None = None) -> Tokenizer:
    """The vocabulary of what `--model` names, at a revision of the hub; its files are fetched where
    they are missing. Raises VocabularyError."""
    if model in GPT2_NAMES:
        return _from_tiktoken(_download_gpt2(model))
    if model == EMBEDDED or model.startswith(RANDOM_PREFIX):
        if (name := model.removeprefix(RANDOM_PREFIX)) not in (EMBEDDED, *RANDOM_NAMES):
            raise VocabularyError(
                f"model '{RANDOM_PREFIX}{name}' is unknown; allowed: {', '.join(RANDOM_NAMES)}"
            )
        return _from_tiktoken(_read(load_embedded_encoding, "the embedded vocabulary"))
    path = locate_files(model, revision)
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def locate_files(model: str, revision: str | None) -> Path:
    """As `models.fetch.locate`. Raises VocabularyError."""
    try:
        return locate(model, revision)
    except FetchError as error:
        raise VocabularyError(str(error)) from error


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


def _from_gguf(path: Path) -> Tokenizer:
    # imported here: the other vocabularies should not wait for it
    from text.gguf_vocabulary import from_metadata

    return from_metadata(read_metadata(path), str(path))


def read_metadata(path: Path) -> Mapping[str, Any]:
    """Of a GGUF file. Raises VocabularyError."""
    try:
        return read_header(path).metadata
    except GGUFError as error:
        raise VocabularyError(str(error)) from None


def _from_folder(folder: Path) -> Tokenizer:
    if (path := folder / VOCABULARY_FILE).exists():
        return _from_tiktoken(_read(lambda: load_embedded_encoding(folder), str(path)))
    # imported here: the other vocabularies should not wait for it
    from tokenizers import Tokenizer as HubTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    byte_level, encode_rest = True, None
    if (path := folder / "tokenizer.json").exists():
        byte_level = _read(lambda: _is_byte_level(path), str(path))
        hub = _read(lambda: HubTokenizer.from_file(str(path)), str(path))
        hub.no_truncation()
        hub.no_padding()
        hub.encode_special_tokens = True  # as plain text
        encode_rest = _without_prefix(hub)
    elif vocab.exists() and merges.exists():
        bpe = _read(lambda: models.BPE.from_file(str(vocab), str(merges)), f"{vocab}, {merges}")
        hub = HubTokenizer(bpe)
        hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        hub.decoder = decoders.ByteLevel()
    else:
        raise VocabularyError(f"{folder} contains no vocabulary; allowed: {_FOLDER_ALLOWED}")
    ends, added = _end_ids(folder, hub.token_to_id), hub.get_added_tokens_decoder()
    # an end that a file calls ordinary stays out of a client's reach, too
    hub.add_special_tokens([entry for token, entry in added.items() if token in ends])
    spelled = spelling.byte_level if byte_level else spelling.sentencepiece
    table = {
        token: text.encode() if token in added else spelled(text)
        for text, token in hub.get_vocab(with_added_tokens=True).items()
    }
    return Tokenizer(
        lambda text: hub.encode(text, add_special_tokens=False).ids,
        table,
        ends,
        {entry.content: token for token, entry in added.items() if entry.special or token in ends},
        bos_id=_bos_id(hub),
        encode_rest=encode_rest,
    )


def _is_byte_level(path: Path) -> bool:
    """Whether the tokens of a `tokenizer.json` are bytes as visible characters, and not
    SentencePiece's with bytes where a character is missing. Raises VocabularyError for others."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    model, decoder = fields.get("model") or {}, fields.get("decoder") or {}
    if model.get("type") == "BPE" and decoder.get("type") == "ByteLevel":
        return True
    parts = [part.get("type") for part in decoder.get("decoders", [])]
    if model.get("type") == "BPE" and model.get("byte_fallback") and "ByteFallback" in parts:
        return False
    raise VocabularyError(
        f"{path}: model and decoder are {model.get('type')} and {decoder.get('type')}; allowed: "
        "BPE with ByteLevel, or with byte_fallback and a Sequence that contains ByteFallback"
    )


def _without_prefix(hub: HubTokenizer) -> Callable[[str], list[int]] | None:
    """Encodes text in the middle of a prompt, where a vocabulary puts a space before its first
    text only; None if that makes no difference."""
    from tokenizers import Tokenizer as HubTokenizer
    from tokenizers.pre_tokenizers import Metaspace

    cut = hub.pre_tokenizer
    if not isinstance(cut, Metaspace) or cut.prepend_scheme != "first":
        return None
    rest = HubTokenizer.from_str(hub.to_str())
    rest.encode_special_tokens = True
    rest.pre_tokenizer = Metaspace(cut.replacement, "never", cut.split)
    return lambda text: rest.encode(text, add_special_tokens=False).ids


def _bos_id(hub: HubTokenizer) -> int | None:
    """The token that its post-processor puts before a text."""
    text, whole = hub.encode("a", add_special_tokens=False).ids, hub.encode("a").ids
    return whole[0] if whole[: len(text)] != text else None


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
