"""A folder's byte-level vocabulary and chat template, as the keys of a GGUF file.

The file names the way in which text is cut before merging; here it is the first that gives the ids
of the folder's own tokenizer for a text of many kinds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gguf import GGUFValueType as Type
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders

from text.chat import PLAIN, template_of
from text.gguf_vocabulary import CUTS, from_metadata
from text.tokenizer import Tokenizer, VocabularyError
from text.vocabulary import hub_tokenizer, load_tokenizer

PROBE = (
    "Hello World's  3 cats, don't  WE'LL\n\n\n x = 1234567;\r\n\tif (a<=b) {return 12.5e3 }  "
    "éçà Ünïcödé 你好,世界 \U0001f680\U0001f469‍\U0001f4bb ½ Ⅷ 123 4567 'S 'LL  ... !!!  ---   \n  "
)
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

Keys = dict[str, tuple[Any, Type, Type | None]]  # name -> value, its type, that of its entries


def vocabulary_of(folder: Path, vocab_size: int) -> Keys:
    """Raises VocabularyError."""
    tokenizer, hub = load_tokenizer(str(folder)), hub_tokenizer(folder)
    if not isinstance(hub.decoder, decoders.ByteLevel):
        raise VocabularyError(f"{folder}: allowed for GGUF: a tokenizer.json of byte-level BPE")
    if tokenizer.vocab_size > vocab_size:
        raise VocabularyError(
            f"{folder}: the vocabulary has {tokenizer.vocab_size} tokens; allowed: {vocab_size}"
        )
    keys = _tokens(hub, vocab_size, tokenizer)
    for name in CUTS:
        keys["pre"] = name, Type.STRING, None
        made = from_metadata(
            {f"tokenizer.ggml.{k}": v for k, (v, _, _) in keys.items()}, str(folder)
        )
        if made.encode(PROBE) == tokenizer.encode(PROBE):
            break
    else:
        raise VocabularyError(
            f"{folder}: it cuts text in another way than the pre-tokenizers of GGUF files that are "
            f"supported: {', '.join(CUTS)}"
        )
    if made.end_ids != tokenizer.end_ids or made.bos_id != tokenizer.bos_id:
        raise VocabularyError(f"{folder}: its end tokens are more than a GGUF file can name")
    named = {f"tokenizer.ggml.{name}": entry for name, entry in keys.items()}
    template = template_of(folder)
    if template != PLAIN:
        named["tokenizer.chat_template"] = template, Type.STRING, None
    return named


def _tokens(hub: HubTokenizer, vocab_size: int, tokenizer: Tokenizer) -> Keys:
    tokens = [f"[PAD{token}]" for token in range(vocab_size)]
    types = [_UNUSED] * vocab_size
    special = set(tokenizer.special_ids.values())
    added = hub.get_added_tokens_decoder()
    for text, token in hub.get_vocab(with_added_tokens=True).items():
        if token >= tokenizer.vocab_size:
            continue  # the network has no row for it
        tokens[token], types[token] = text, _NORMAL
        if token in special:
            types[token] = _CONTROL
        elif token in added and tokenizer.token_bytes(token) == text.encode():
            types[token] = _USER_DEFINED  # the others, such as a line's end, are spelled in bytes
    merges = json.loads(hub.to_str())["model"]["merges"]
    keys: Keys = {
        "model": ("gpt2", Type.STRING, None),
        "tokens": (tokens, Type.ARRAY, Type.STRING),
        "token_type": (types, Type.ARRAY, Type.INT32),
        "merges": (
            [pair if isinstance(pair, str) else " ".join(pair) for pair in merges],
            Type.ARRAY,
            Type.STRING,
        ),
        "add_bos_token": (tokenizer.bos_id is not None, Type.BOOL, None),
    }
    if tokenizer.bos_id is not None:
        keys["bos_token_id"] = tokenizer.bos_id, Type.UINT32, None
    for name, token in zip(("eos", "eot", "eom"), sorted(tokenizer.end_ids), strict=False):
        keys[f"{name}_token_id"] = token, Type.UINT32, None
    return keys
