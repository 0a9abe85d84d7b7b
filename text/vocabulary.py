"""Loads the vocabulary of what `--model` names.

A folder in the Hugging Face layout has `tokenizer.json`, or `vocab.json` with `merges.txt`; the
embedded model has ranks of its own; a GGUF file has its vocabulary inside
(`text/gguf_vocabulary.py`). As in `transformers`, `tokenizer_config.json` names the special tokens,
`special_tokens_map.json` where that lists no added tokens, and the tokenizer's class where both are
silent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tiktoken

from models.embedded.vocabulary import END_OF_TEXT, VOCABULARY_FILE, load_embedded_encoding
from models.fetch import locate
from models.names import EMBEDDED, RANDOM_NAMES, RANDOM_PREFIX
from models.weights.gguf_header import read_header
from seams import LoadError
from text.tokenizer import Tokenizer, byte_level, encoder, sentencepiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer

_FOLDER_ALLOWED = (
    f"{VOCABULARY_FILE} (as models/embedded/train.py writes it), tokenizer.json, or vocab.json "
    "with merges.txt"
)
_GPT2 = "GPT2Tokenizer"
SETTINGS_FILE, MAP_FILE = "tokenizer_config.json", "special_tokens_map.json"
_OF_CLASS = {
    _GPT2: dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), END_OF_TEXT),
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
}  # fmt: skip
_CLASS_OF_MODEL = {"gpt2": _GPT2}  # whose published files name no class


def load_tokenizer(model: str, revision: str | None = None) -> Tokenizer:
    """The vocabulary of what `--model` names, at a revision of the hub; its files are fetched where
    they are missing. Raises LoadError."""
    if model == EMBEDDED or model.startswith(RANDOM_PREFIX):
        if (name := model.removeprefix(RANDOM_PREFIX)) not in (EMBEDDED, *RANDOM_NAMES):
            raise LoadError(
                f"model '{RANDOM_PREFIX}{name}' is unknown; allowed: {', '.join(RANDOM_NAMES)}"
            )
        return _from_tiktoken(_read(load_embedded_encoding, "the embedded vocabulary"))
    path = locate(model, revision)
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _read(load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except Exception as error:  # each format's library raises kinds of its own, some undocumented
        raise LoadError(f"{what} cannot be read: {error}") from error


def _from_tiktoken(encoding: tiktoken.Encoding) -> Tokenizer:
    table = {}
    for token in range(encoding.n_vocab):
        try:
            table[token] = encoding.decode_single_token_bytes(token)
        except KeyError:
            continue  # ids may have gaps
    specials = {name: encoding.encode_single_token(name) for name in encoding.special_tokens_set}
    return Tokenizer(encoding.encode_ordinary, table, [encoding.eot_token], specials)


def _from_gguf(path: Path) -> Tokenizer:
    # imported here: the other vocabularies should not wait for it
    from text.gguf_vocabulary import from_metadata

    return from_metadata(read_header(path).metadata, str(path))


def _from_folder(folder: Path) -> Tokenizer:
    if (path := folder / VOCABULARY_FILE).exists():
        return _from_tiktoken(_read(lambda: load_embedded_encoding(folder), str(path)))
    hub = hub_tokenizer(folder)
    hub.no_truncation()
    hub.no_padding()
    hub.encode_special_tokens = True  # as plain text
    spelled = byte_level if _is_byte_level(hub, folder) else sentencepiece
    ends, added = _end_ids(folder, hub.token_to_id), hub.get_added_tokens_decoder()
    # those of other modalities, and pads for which the network was not resized, have no rows in it
    rows = read_object(folder / "config.json").get("vocab_size")
    beyond = {token for token in added if type(rows) is int and token >= rows}
    # an end that a file calls ordinary stays out of a client's reach, too
    hub.add_special_tokens([entry for token, entry in added.items() if token in ends | beyond])
    bos_id = _bos_id(folder, hub)
    return Tokenizer(
        encoder(hub),
        {
            token: spelled(text)
            for text, token in hub.get_vocab(with_added_tokens=True).items()
            if token not in beyond
        },
        ends,
        {
            entry.content: token
            for token, entry in added.items()
            if (entry.special or token in ends) and token not in beyond
        },
        flags={entry.content: entry for entry in added.values()},
        bos_id=None if bos_id in beyond else bos_id,
        encode_rest=_without_prefix(hub),
        composed=_composed(hub),
    )


def hub_tokenizer(folder: Path) -> HubTokenizer:
    """Of the first of its files that can be read. Raises LoadError."""
    # imported here: the other vocabularies should not wait for it
    from tokenizers import Tokenizer as HubTokenizer

    path, parts = folder / "tokenizer.json", (folder / "vocab.json", folder / "merges.txt")
    has_parts = all(part.exists() for part in parts)
    if path.exists():
        try:
            return cast("HubTokenizer", _read(lambda: HubTokenizer.from_file(str(path)), str(path)))
        except LoadError as error:
            if not has_parts:
                raise
            print(f"{error}; {parts[0]} is read in its place", file=sys.stderr, flush=True)
    if not has_parts:
        raise LoadError(f"{folder} contains no vocabulary; allowed: {_FOLDER_ALLOWED}")
    return cast("HubTokenizer", _read(lambda: _of_gpt2(folder, *parts), ", ".join(map(str, parts))))


def _of_gpt2(folder: Path, vocab: Path, merges: Path) -> HubTokenizer:
    """Files from before `tokenizer.json`, which do not say how text is cut."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as HubTokenizer

    kind = read_settings(folder).get("tokenizer_class", _GPT2)
    if str(kind).removesuffix("Fast") != _GPT2:
        raise ValueError(f"tokenizer_class is {kind}; allowed without tokenizer.json: {_GPT2}")
    hub = HubTokenizer(models.BPE.from_file(str(vocab), str(merges)))
    hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hub.decoder = decoders.ByteLevel()
    named = [END_OF_TEXT] if hub.token_to_id(END_OF_TEXT) is not None else []
    for value in read_object(folder / MAP_FILE).values():
        listed = map(content, value if isinstance(value, list) else [value])
        named += [text for text in listed if text is not None]
    added = read_object(folder / "added_tokens.json")
    in_order = sorted(added, key=added.__getitem__)
    hub.add_special_tokens([text for text in named if hub.token_to_id(text) is not None])
    hub.add_tokens([AddedToken(text, special=text in named) for text in in_order])
    if wrong := [text for text in in_order if hub.token_to_id(text) != added[text]]:
        raise ValueError(f"added_tokens.json: {wrong[0]!r} is not the id that follows")
    return hub


def _is_byte_level(hub: HubTokenizer, folder: Path) -> bool:
    """Whether its tokens are bytes as visible characters, and not SentencePiece's with bytes where
    a character is missing. Raises LoadError for others."""
    from tokenizers import decoders, models

    model, decoder = hub.model, hub.decoder
    if isinstance(model, models.BPE):
        if isinstance(decoder, decoders.ByteLevel):
            return True
        if model.byte_fallback and decoder is not None and decoder.decode(["<0x41>"]) == "A":
            return False
    names = [None if part is None else type(part).__name__ for part in (model, decoder)]
    raise LoadError(
        f"{folder}/tokenizer.json: model and decoder are {names[0]} and {names[1]}; allowed: BPE "
        "with ByteLevel, or with byte_fallback and a Sequence that contains ByteFallback"
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
    return encoder(rest)


def _composed(hub: HubTokenizer) -> int:
    """How many characters its normalizer may make one: where it composes, up to four, such as a
    Greek letter with three accents."""
    accented = "e\u0301"
    normalizer = hub.normalizer
    return 4 if normalizer and len(normalizer.normalize_str(accented)) < len(accented) else 1


def _bos_id(folder: Path, hub: HubTokenizer) -> int | None:
    """The token that begins a prompt: as `add_bos_token` says, or else the one that the
    post-processor puts before a text. Raises LoadError."""
    asked = read_settings(folder).get("add_bos_token")
    if isinstance(asked, bool):
        names = read_names(folder, hub.get_vocab(with_added_tokens=True))
        return hub.token_to_id(names.get("bos_token", "")) if asked else None
    text, whole = hub.encode("a", add_special_tokens=False).ids, hub.encode("a").ids
    return whole[0] if whole[: len(text)] != text else None


def _end_ids(folder: Path, id_of: Callable[[str], int | None]) -> set[int]:
    """The tokens that end a text: all that the checkpoint's files name, and where they name none,
    `<|endoftext|>`. Of `generation_config.json` and `config.json` the first that names one counts,
    as in `transformers`."""
    ids = read_object(folder / "generation_config.json").get("eos_token_id")
    if ids is None:
        ids = read_object(folder / "config.json").get("eos_token_id")
    ids = ids if isinstance(ids, list) else [ids]
    named = {token for token in ids if type(token) is int}
    text = content(read_settings(folder).get("eos_token"))
    if text is not None and (token := id_of(text)) is not None:
        named.add(token)
    return named or {token for token in [id_of(END_OF_TEXT)] if token is not None}


def read_names(folder: Path, known: Container[str]) -> dict[str, str]:
    """Name -> token. A class's token counts if it is `known`. Raises LoadError."""
    settings = read_settings(folder)
    kind = settings.get("tokenizer_class")
    if kind is None:
        kind = _CLASS_OF_MODEL.get(str(read_object(folder / "config.json").get("model_type")))
    of_class = _OF_CLASS.get(str(kind).removesuffix("Fast"), {})
    said = {name: token for name, token in of_class.items() if token in known}
    said |= {k: v for k, v in settings.items() if k.endswith("_token")}
    if isinstance(further := settings.get("extra_special_tokens"), dict):
        said |= further
    if "added_tokens_decoder" not in settings:
        mapped = read_object(folder / MAP_FILE).items()
        said |= {name: token for name, token in mapped if name.endswith("_token")}
    named = {name: content(token) for name, token in said.items()}
    return {name: token for name, token in named.items() if token is not None}


def content(token: Any) -> str | None:
    """Of a token that is a text, or an object with its properties; None: neither."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def read_settings(folder: Path) -> dict[str, Any]:
    """Raises LoadError."""
    return read_object(folder / SETTINGS_FILE)


def read_object(path: Path) -> dict[str, Any]:
    """Of a JSON file that may be absent. Raises LoadError."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path} cannot be read: it is no object")
    return value
