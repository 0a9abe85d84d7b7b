"""The vocabulary of a GGUF file, as a tokenizer that gives the ids of llama.cpp's.

Two kinds: byte-level BPE (`gpt2`), whose text is first cut by the rules of the family that
`tokenizer.ggml.pre` names, and SentencePiece's BPE (`llama`), which joins the pair with the best
score and spells what it lacks in bytes. Names and rules are those of llama.cpp's
`src/llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HubTokenizer
from tokenizers.models import BPE

from seams import LoadError
from text.tokenizer import (
    SPACE,
    Tokenizer,
    byte_level,
    encoder,
    sentencepiece,
)

# llama.cpp's `llama_token_type`
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

# tokens that end an answer whatever the file calls them, as in llama.cpp
_ENDS = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>",
         "<end_of_turn>"}  # fmt: skip

_MOST_CHARACTERS = 1024  # of a token: the work of finding merges grows with their square

_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
# lower and upper case as llama.cpp separates them: in ASCII only
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])*((?=\p{L})[^A-Z])+"
    r"|[^\r\n\p{L}\p{N}]?((?=\p{L})[^a-z])+((?=\p{L})[^A-Z])*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a family cuts text before BPE: each pattern cuts what the one before has left."""

    patterns: Sequence[str]
    whole_words: bool = False  # a piece that is a token needs no merges
    adds_bos: bool = False  # where the file does not say


_OF_LLAMA3 = _Cut([_LLAMA3], whole_words=True, adds_bos=True)
CUTS = {
    "gpt-2": _Cut([_GPT2]),
    "smollm": _Cut([_DIGIT, _GPT2]),
    "llama-bpe": _OF_LLAMA3,
    "llama3": _OF_LLAMA3,
    "llama-v3": _OF_LLAMA3,
    "falcon3": _OF_LLAMA3,
    "tekken": _Cut([_TEKKEN], whole_words=True, adds_bos=True),
    "smaug-bpe": _Cut([_LLAMA3]),
    "qwen2": _Cut([_QWEN2]),
    "deepseek-r1-qwen": _Cut([_QWEN2]),
    "default": _Cut([r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9]{3}"]),
}


def from_metadata(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer that the keys `tokenizer.ggml.*` of a GGUF file describe. `source` names the
    file in errors. Raises LoadError."""
    try:
        return _Vocabulary(metadata, source).tokenizer()
    except LoadError:
        raise
    except Exception as error:  # of lists with wrong types or lengths, or of the library
        raise LoadError(f"{source}: the vocabulary cannot be read: {error}") from error


class _Vocabulary:
    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._source = source
        self._metadata = metadata
        self._tokens: list[str] = self._list("tokens")
        self._types: list[int] = self._list("token_type", len(self._tokens))
        self._id_of = {text: token for token, text in enumerate(self._tokens)}
        if len(self._id_of) != len(self._tokens):
            raise LoadError(f"{source}: tokenizer.ggml.tokens contains a token twice")
        if max(map(len, self._tokens)) > _MOST_CHARACTERS:
            raise LoadError(f"{source}: a token is longer than {_MOST_CHARACTERS} characters")

    def tokenizer(self) -> Tokenizer:
        kind = self._get("model")
        if kind == "gpt2":
            hub, adds_bos = self._byte_level()
            spelled = byte_level
        elif kind == "llama":
            hub, adds_bos = self._sentencepiece(), True
            spelled = sentencepiece
        else:
            raise LoadError(
                f"{self._source}: tokenizer.ggml.model is {kind!r}; allowed: gpt2, llama"
            )
        ends, bos = self._ends(), self._id("bos_token_id")
        special = {self._tokens[token]: token for token in self._special(ends)}
        hub.add_tokens(
            [
                AddedToken(self._tokens[token], normalized=False)
                for token in self._of_type(_USER_DEFINED)
                if token not in ends
            ]
        )
        if not self._get("add_bos_token", adds_bos):
            bos = None
        elif bos is None:
            raise LoadError(f"{self._source}: tokenizer.ggml.bos_token_id is missing")
        return Tokenizer(
            encoder(hub),
            {
                token: spelled(text) if self._types[token] in (_NORMAL, _BYTE) else text.encode()
                for text, token in self._id_of.items()
            },
            ends,
            special,
            bos_id=bos,
        )

    def _byte_level(self) -> tuple[HubTokenizer, bool]:
        name = self._get("pre", "default")
        if name not in CUTS:
            raise LoadError(
                f"{self._source}: the pre-tokenizer (tokenizer.ggml.pre) is {name!r}; allowed: "
                f"{', '.join(CUTS)}"
            )
        cut = CUTS[name]
        ordinary = self._ordinary()
        merges = [
            (left, right)
            for left, right in map(_pair, self._list("merges"))
            if {left, right, left + right} <= ordinary.keys()
        ]
        hub = HubTokenizer(BPE(ordinary, merges, ignore_merges=cut.whole_words))
        hub.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return hub, cut.adds_bos

    def _sentencepiece(self) -> HubTokenizer:
        scores = self._list("scores", len(self._tokens))
        ordinary = self._ordinary()
        joined = {text: scores[token] for text, token in ordinary.items()
                  if self._types[token] != _BYTE}  # fmt: skip
        hub = HubTokenizer(BPE(ordinary, _merges(joined), byte_fallback=True))
        prefix = [normalizers.Prepend(SPACE)] if self._get("add_space_prefix", True) else []
        hub.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", SPACE)])
        return hub

    def _ordinary(self) -> dict[str, int]:
        """The tokens that text may become."""
        specials = self._special(self._ends())
        return {text: token for text, token in self._id_of.items() if token not in specials}

    def _special(self, ends: set[int]) -> set[int]:
        """Control tokens, and ends that the file does not call control tokens; an end that is
        ordinary text, such as a full stop, stays so."""
        typed = set(self._of_type(_CONTROL, _UNKNOWN))
        return typed | {
            token for token in ends if self._types[token] != _NORMAL or self._tokens[token] in _ENDS
        }

    def _ends(self) -> set[int]:
        """What the file names as ends, and control tokens whose name says it."""
        named = {self._id(name) for name in ("eos_token_id", "eot_token_id", "eom_token_id")}
        known = {self._id_of[text] for text in _ENDS & self._id_of.keys()}
        return {token for token in named if token is not None} | known

    def _of_type(self, *types: int) -> Iterator[int]:
        return (token for token, kind in enumerate(self._types) if kind in types)

    def _id(self, name: str) -> int | None:
        token = self._get(name)
        if token is not None and not 0 <= token < len(self._tokens):
            raise LoadError(
                f"{self._source}: tokenizer.ggml.{name} is {token}; allowed: 0 to "
                f"{len(self._tokens) - 1}"
            )
        return None if token is None else int(token)

    def _get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _list(self, name: str, length: int | None = None) -> list[Any]:
        values = self._get(name)
        if not values:
            raise LoadError(f"{self._source}: tokenizer.ggml.{name} is missing")
        if length is not None and len(values) != length:
            raise LoadError(
                f"{self._source}: tokenizer.ggml.{name} has {len(values)} entries; "
                f"tokenizer.ggml.tokens has {length}"
            )
        return list(values)


def _pair(text: str) -> tuple[str, str]:
    """Of a merge; its first token may begin with a space."""
    cut = text.index(" ", 1)
    return text[:cut], text[cut + 1 :]


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All pairs that join to a token, the best score first. Among pairs of one token the longest
    left part is first: in a run of one character, SentencePiece joins from the left."""
    pairs = [
        (-score, -cut, text)
        for text, score in scores.items()
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    return [(text[:-left], text[-left:]) for _, left, text in sorted(pairs)]
