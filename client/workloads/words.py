"""The words that prompts are made of. Each is one token, so that a prompt's length can be chosen.

They come from the embedded vocabulary. Of another model's vocabulary those are taken that are one
token there, too.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client.workloads.spec import SpecError

VOCABULARY = Path(__file__).resolve().parents[2] / "embedded" / "vocab.tiktoken"
_COMMON = "the"  # one token of any vocabulary for English


@dataclass(frozen=True, slots=True)
class Words:
    """A prompt is one of `starts` and any number of `further` words, each with the space before it.

    `before`: tokens that the server puts before every prompt, which count as part of it.
    `sha256` identifies the words.
    """

    starts: tuple[str, ...]
    further: tuple[str, ...]
    before: int
    sha256: str

    def question(self) -> str:
        """A text whose tokens show which of the words are one token, see `kept`."""
        return "\n".join((_COMMON, *self.starts, *self.further))

    def kept(self, tokens: Mapping[tuple[int, int], int]) -> Words:
        """The words that are one token of a vocabulary that cuts `question` into `tokens`: which
        characters of it each covers. All of them, if no prompt could be made of the rest."""
        ids, at = [], 0
        for line in self.question().split("\n"):
            ids.append(tokens.get((at, at + len(line))))
            at += len(line) + 1
        begun, single = ids[0], dict(zip((_COMMON, *self.starts, *self.further), ids, strict=True))
        further = tuple(word for word in self.further if single[word] is not None)
        # SentencePiece puts a space before a text: its first word is one that follows a space
        spaced = begun != single[_COMMON]
        continuing = set(further)
        starts = tuple(
            word
            for word in self.starts
            if (f" {word}" in continuing if spaced else single[word] is not None)
        )
        before = sum(start == stop for start, stop in tokens)
        if not starts or not further or (starts, further, before) == (
            self.starts, self.further, self.before,
        ):  # fmt: skip
            return self
        text = "\n".join((*starts, *further, str(before)))
        return Words(starts, further, before, hashlib.sha256(text.encode()).hexdigest())


@functools.cache
def embedded_words() -> Words:
    """The whole-word tokens of the embedded vocabulary: those that begin a text, and those with a
    space. Raises SpecError without it.

    A word with the space before it is one piece of the vocabulary's pattern and is looked up
    whole, so joined words are exactly as many tokens.
    """
    try:
        data = VOCABULARY.read_bytes()
    except OSError as error:
        raise SpecError(f"prompts of words need {VOCABULARY}: {error.strerror}") from None
    tokens = [base64.b64decode(line.split()[0]) for line in data.splitlines()]
    words = [token.decode() for token in tokens if re.fullmatch(rb" ?[a-z]{2,}", token)]
    starts = tuple(word for word in words if word[0] != " ")
    further = tuple(word for word in words if word[0] == " ")
    return Words(starts, further, 0, hashlib.sha256(data).hexdigest())
