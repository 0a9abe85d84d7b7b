"""The special tokens of a checkpoint by the names under which its files and templates know them.

As in `transformers`: `tokenizer_config.json` names them, `special_tokens_map.json` where that lists
no added tokens, and the tokenizer's class where both are silent.
"""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from text.tokenizer import VocabularyError

SETTINGS_FILE, MAP_FILE = "tokenizer_config.json", "special_tokens_map.json"
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_END_OF_TEXT = "<|endoftext|>"
_OF_CLASS = {
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT),
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END_OF_TEXT),
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
}  # fmt: skip
_CLASS_OF_MODEL = {"gpt2": "GPT2Tokenizer"}  # whose published files name no class


def read_names(folder: Path, known: Container[str]) -> dict[str, str]:
    """Name -> token. A class's token counts if it is `known`. Raises VocabularyError."""
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
    """Raises VocabularyError."""
    return read_object(folder / SETTINGS_FILE)


def read_object(path: Path) -> dict[str, Any]:
    """Of a JSON file that may be absent. Raises VocabularyError."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VocabularyError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise VocabularyError(f"{path} cannot be read: it is no object")
    return value
