"""A model's vocabulary as llguidance takes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a model also runs where llguidance is not installed
    from llguidance import LLTokenizer

# Where a mask allows all tokens of such a form, they are not looked at one by one. Of llguidance's
# own, none is a part of what a pattern of letters or digits allows, nor of an email address.
SLICES = "[a-zA-Z ]{1,10}", "[a-zA-Z0-9]{1,10}"


class Vocabulary(Protocol):
    """A text.tokenizer.Tokenizer."""

    @property
    def end_ids(self) -> Collection[int]: ...

    @property
    def special_ids(self) -> Mapping[str, int]: ...

    @property
    def spellings(self) -> Sequence[bytes]: ...  # of all ids; empty where there is no token

    def encode(self, text: str) -> list[int]: ...


class _Spelled:
    """A vocabulary as llguidance's TokenizerWrapper takes it."""

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.tokens = list(vocabulary.spellings)
        self.special_token_ids = sorted({*ends, *vocabulary.special_ids.values()})
        self._encode = vocabulary.encode
        self.greedily: Callable[[str], list[int]] = lambda _: []

    def __call__(self, text: str) -> list[int]:
        """Tokens with exactly these bytes. Some vocabularies put a space before a text; behind a
        line's end they do not."""
        wanted = text.encode()
        if self._bytes(ids := self._encode(text)) == wanted:
            return ids
        ids, at = self._encode("\n" + text), 0
        while ids and at < 3:
            at += 1
            if self._bytes(ids[at:]) == wanted:
                return ids[at:]
        return self.greedily(text)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.tokens[token] for token in ids])


@dataclass(frozen=True, slots=True)
class Loaded:
    ends: list[int]
    mask_bytes: int
    tokenizer: LLTokenizer | None  # None: there are no ends

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Loaded:
        """Special tokens are no part of any text that a grammar describes by its characters."""
        from llguidance import LLTokenizer, TokenizerWrapper

        # a model's files may name ends for which its vocabulary has no token
        ends = sorted(end for end in vocabulary.end_ids if end < len(vocabulary.spellings))
        mask_bytes = 4 * -(-len(vocabulary.spellings) // 32)
        if not ends:
            return cls(ends, mask_bytes, None)
        spelled = _Spelled(vocabulary, ends)
        slices = [*LLTokenizer.general_slices(), *SLICES]
        tokenizer = LLTokenizer(TokenizerWrapper(spelled), eos_token=ends, slices=slices)
        spelled.greedily = tokenizer.greedy_tokenize
        return cls(ends, mask_bytes, tokenizer)
