"""The `tokenizer.json` of each family as its authors publish it: the real steps, flags and kinds of
added tokens over a vocabulary of bytes or of a few letters."""

# ruff: noqa: RUF001 - some names of tokens have a wide bar

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from text.tokenizer import SPACE

Fields = dict[str, Any]
BYTE_LEVEL: Fields = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
}  # fmt: skip
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = [("t", "h"), ("th", "e"), ("SPACE", "the"), ("i", "n"), ("a", "n"), ("e", "r")]


def added(token: int, content: str, *, special: bool = True, normalized: bool = False) -> Fields:
    return {
        "id": token, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": normalized, "special": special,
    }  # fmt: skip


def begins_with(token: str, ids: Mapping[str, int]) -> Fields:
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    whole = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, whole],
        "pair": [first, whole, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]}},
    }


def split(pattern: str) -> Fields:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return sequence("pretokenizers", cut, BYTE_LEVEL | {"use_regex": False})


def sequence(name: str, *parts: Fields) -> Fields:
    return {"type": "Sequence", name: list(parts)}


def byte_level(
    specials: Sequence[str | tuple[str, bool]],
    *,
    first: bool = False,
    bos: str | None = None,
    merges_as: Callable[[tuple[str, str]], object] = " ".join,
    model: Mapping[str, object] | None = None,
    **steps: Any,
) -> Fields:
    """`specials`: beside the bytes, at the lowest ids if `first`; a pair is a token and whether it
    is special."""
    listed = [(one, True) if isinstance(one, str) else one for one in specials]
    merges = [(a.replace("SPACE", "Ġ"), b) for a, b in MERGES]
    ordinary = [*sorted(ByteLevel.alphabet()), *(a + b for a, b in merges)]
    names = [name for name, _ in listed]
    tokens = [*names, *ordinary] if first else [*ordinary, *names]
    tokens = list(dict.fromkeys(tokens))
    ids = {token: n for n, token in enumerate(tokens)}
    # of Llama 3 and Qwen the added tokens are no part of the model's vocabulary
    vocab = {t: n for t, n in ids.items() if first or t not in names}
    post = begins_with(bos, ids) if bos is not None else None
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(ids[name], name, special=of) for name, of in listed],
        "normalizer": None, "pre_tokenizer": BYTE_LEVEL,
        "post_processor": sequence("processors", BYTE_LEVEL, post) if post else BYTE_LEVEL,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocab, "merges": list(map(merges_as, merges)),
            **(model or {}),
        },
        **steps,
    }  # fmt: skip


def sentencepiece(
    specials: Sequence[str | tuple[str, bool]],
    *,
    bos: str | None = "<s>",
    normalized: bool = False,
    last: Sequence[str | tuple[str, bool]] = (),
    **steps: Any,
) -> Fields:
    """`normalized`: as the added tokens of Llama 1's first conversions say. `last`: behind all
    others, as fine-tunes add them."""
    listed, end = ([(o, True) if isinstance(o, str) else o for o in s] for s in (specials, last))
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'<>|/[]_\né"
    merges = [(a.replace("SPACE", SPACE), b) for a, b in MERGES]
    merges += [(SPACE, SPACE), (SPACE * 2, SPACE)]
    tokens = [*(name for name, _ in listed), *(f"<0x{n:02X}>" for n in range(256))]
    tokens += [SPACE, *letters, *(a + b for a, b in merges), *(name for name, _ in end)]
    ids = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoded = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    parts = decoded, {"type": "ByteFallback"}, {"type": "Fuse"}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            added(ids[name], name, special=of, normalized=normalized) for name, of in listed + end
        ],
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, spaces),
        "pre_tokenizer": None,
        "post_processor": None if bos is None else begins_with(bos, ids),
        "decoder": sequence("decoders", *parts, strip),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>",
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
            "byte_fallback": True, "vocab": ids, "merges": list(map(" ".join, merges)),
        },
        **steps,
    }  # fmt: skip


def openai() -> Fields:
    """GPT-2 as OpenAI published it: the model has no `type` and no flags."""
    fields = byte_level(["<|endoftext|>"])
    model = fields["model"]
    fields["model"] = {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
        "end_of_word_suffix": "", "fuse_unk": False,
        "vocab": model["vocab"] | {"<|endoftext|>": fields["added_tokens"][0]["id"]},
        "merges": model["merges"],
    }  # fmt: skip
    return fields


def gemma() -> Fields:
    """With runs of newlines and of spaces, HTML's tags, and an image's token behind the rows."""
    runs = [("\n" * n, False) for n in (1, 2, 3)] + [(SPACE * n, False) for n in (2, 3)]
    tags = [("<table>", False), ("</div>", False)]
    return sentencepiece(
        ["<pad>", "<eos>", "<bos>", "<unk>", *runs, *tags, "<start_of_turn>", "<end_of_turn>"],
        bos="<bos>",
        last=["<image_soft_token>"],
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        pre_tokenizer={
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
            "invert": False,
        },
        decoder=sequence(
            "decoders",
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ),
    )  # fmt: skip


def falcon3() -> Fields:
    """A newline and a tab are added tokens, spelled as their bytes are."""
    digits = {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
              "invert": False}  # fmt: skip
    return byte_level(
        [">>TITLE<<", "<|endoftext|>", ("Ċ", False), ("ĉ", False), "<|pad|>"],
        first=True,
        pre_tokenizer=sequence(
            "pretokenizers",
            {"type": "Punctuation", "behavior": "Contiguous"},
            BYTE_LEVEL,
            {"type": "Digits", "individual_digits": False},
            digits,
        ),
    )


IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_HEADERS = ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"]
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
DIGITS = sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTE_LEVEL)
TOKENIZERS: dict[str, Callable[[], Fields]] = {
    "gpt2, OpenAI": openai,
    "gpt2, 4": lambda: byte_level(["<|endoftext|>"], model={"continuing_subword_prefix": ""}),
    "gpt2, 5": lambda: byte_level(["<|endoftext|>"], merges_as=list),
    "llama 1": lambda: sentencepiece(["<unk>", "<s>", "</s>"], normalized=True),
    "llama 2": lambda: sentencepiece(["<unk>", "<s>", "</s>"]),
    "codellama": lambda: sentencepiece(
        ["<unk>", "<s>", "</s>"], last=[f"{SPACE}<PRE>", f"{SPACE}<SUF>", f"{SPACE}<EOT>"]
    ),
    "granite": lambda: sentencepiece(["<unk>", "<s>", "</s>"], bos=None, last=["<|endoftext|>"]),
    "eeve": lambda: sentencepiece(["<unk>", "<s>", "</s>"], last=["<|im_end|>", "<|im_start|>"]),
    "mistral 3": lambda: sentencepiece(
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"],
        normalizer=None, pre_tokenizer=METASPACE,
    ),
    "tekken": lambda: byte_level(
        ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], first=True, bos="<s>",
        pre_tokenizer=split(TEKKEN), model={"ignore_merges": True},
    ),
    "dolphin": lambda: byte_level(
        ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"], first=True, bos="<s>",
        pre_tokenizer=split(TEKKEN), model={"ignore_merges": True},
    ),
    "llama 3": lambda: byte_level(
        ["<|begin_of_text|>", "<|end_of_text|>", *_HEADERS], bos="<|begin_of_text|>",
        pre_tokenizer=split(LLAMA3), model={"ignore_merges": True},
    ),
    "smollm3": lambda: byte_level(
        ["<|begin_of_text|>", "<|end_of_text|>", ("<think>", False), ("</think>", False),
         "<|im_start|>", "<|im_end|>"],
        pre_tokenizer=split(LLAMA3), model={"ignore_merges": True},
    ),
    "qwen": lambda: byte_level(
        [*IM, ("<tool_call>", False), ("</tool_call>", False), ("<think>", False)],
        normalizer={"type": "NFC"}, pre_tokenizer=split(QWEN),
    ),
    "deepseek": lambda: byte_level(
        ["<｜end▁of▁sentence｜>", ("<｜User｜>", False), ("<｜Assistant｜>", False),
         "<｜begin▁of▁sentence｜>", ("<think>", False)],
        normalizer={"type": "NFC"}, pre_tokenizer=split(QWEN),
    ),
    "deepseek llama": lambda: byte_level(
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ("<｜User｜>", False),
         ("<｜Assistant｜>", False), ("<think>", False)],
        bos="<｜begin▁of▁sentence｜>", pre_tokenizer=split(LLAMA3), model={"ignore_merges": True},
    ),
    "smollm2": lambda: byte_level(IM, first=True, post_processor=None, pre_tokenizer=DIGITS),
    "gemma": gemma,
    "falcon3": falcon3,
}  # fmt: skip
