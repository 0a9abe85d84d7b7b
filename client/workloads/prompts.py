"""What requests say: words of one token each, texts of a file, and prompts that begin alike: shared
prefixes, and the blocks of a recorded trace.

A server with a prefix cache computes a common beginning once. Words are one token each, so lengths
are exact, and equal beginnings are equal texts. They come from the embedded vocabulary; of another
model's vocabulary those are taken that are one token there, too.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.workloads.lengths import Sizes
from client.workloads.spec import Count, SpecError, build, read_text

Prompts = tuple[list[str], list[int] | None]  # texts, and their lengths in tokens if known
BLOCK_TOKENS = 512  # of Mooncake's hash_ids
VOCABULARY = Path(__file__).resolve().parents[2] / "models" / "embedded" / "vocab.tiktoken"
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


def lengths_are_chosen(prompts: str) -> bool:
    """Whether prompts are made up, so that their lengths can be chosen."""
    return prompts.partition(":")[0] in ("words", "shared")


def words_of(lengths: Sizes, rng: np.random.Generator, words: Words) -> Prompts:
    """Words that are one token each, so that a prompt has exactly the wanted number of tokens."""
    lengths = np.maximum(lengths, words.before + 1)
    picked = iter(rng.integers(len(words.further), size=int(lengths.sum())).tolist())
    firsts = rng.integers(len(words.starts), size=lengths.size).tolist()
    texts = [
        words.starts[first] + "".join(words.further[w] for w in itertools.islice(picked, more))
        for first, more in zip(firsts, (lengths - words.before - 1).tolist(), strict=True)
    ]
    return texts, lengths.tolist()


def plain_prompts(kind: str, n: int, rng: np.random.Generator) -> Prompts:
    """``request``, ``sharegpt:FILE`` or ``lines:FILE``, which have the lengths that they have."""
    name, _, path = kind.partition(":")
    if name == "request":
        return [f"Request {i}" for i in range(n)], None
    if name not in ("sharegpt", "lines") or not path:
        raise SpecError(
            f"prompts {kind!r} are unknown; allowed: words, request, shared:..., sharegpt:FILE, "
            "lines:FILE"
        )
    text = read_text(Path(path))
    pool = [t for t in (_first_turns(path, text) if name == "sharegpt" else text.splitlines())
            if t.strip()]  # fmt: skip
    if not pool:
        raise SpecError(f"{path} contains no prompts")
    return [pool[i] for i in rng.integers(len(pool), size=n).tolist()], None


def _first_turns(path: str, text: str) -> list[str]:
    """Of the humans, in the published format."""
    try:
        begun = [entry["conversations"][:1] for entry in json.loads(text)]
        return [str(turn["value"]) for (turn,) in filter(None, begun) if turn["from"] == "human"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise SpecError(
            f'{path}: expected [{{"conversations": [{{"from": "human", "value": text}}]}}, ...]'
        ) from None


class TextMaker:
    """Texts with the given numbers of tokens."""

    def __init__(self, words: Words, rng: np.random.Generator) -> None:
        self.words, self.rng = words, rng

    def first(self, tokens: int) -> str:
        """Text that begins a prompt, of at least one word."""
        start = self.words.starts[int(self.rng.integers(len(self.words.starts)))]
        return start + self.more(max(0, tokens - self.words.before - 1))

    def more(self, tokens: int) -> str:
        """Text that continues a prompt."""
        picked = self.rng.integers(len(self.words.further), size=tokens).tolist()
        return "".join(self.words.further[k] for k in picked)


def shared_prompts(kind: str, own: Sizes, rng: np.random.Generator, words: Words) -> Prompts:
    """Prompts of ``own`` tokens each behind one of so many texts, equally likely, as
    ``shared:prefixes=4,tokens=128`` asks for."""
    made = TextMaker(words, rng)

    def begun(prefixes: Count = 4, tokens: Count = 128) -> Prompts:
        firsts = [made.first(tokens) for _ in range(prefixes)]
        chosen = rng.integers(prefixes, size=own.size).tolist()
        texts = [firsts[k] + made.more(n) for k, n in zip(chosen, own.tolist(), strict=True)]
        return texts, (own + max(tokens, words.before + 1)).tolist()

    return build(kind, {"shared": begun}, "prompts")


def block_prompts(
    blocks: Sequence[tuple[int, ...]],
    lengths: Sizes,
    seed: np.random.SeedSequence,
    words: Words,
) -> Prompts:
    """Prompts of which the blocks with one id are one text, as in the trace that names them.

    A prompt that is longer than its blocks ends in words of its own.
    """
    texts = []
    lengths = np.maximum(lengths, words.before + 1)
    own = TextMaker(words, np.random.default_rng(seed))

    @functools.cache
    def block(number: int, begins: bool) -> str:
        child = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number))
        made = TextMaker(words, np.random.default_rng(child))
        return made.first(BLOCK_TOKENS) if begins else made.more(BLOCK_TOKENS)

    for ids, length in zip(blocks, lengths.tolist(), strict=True):
        if not ids:
            texts.append(own.first(length))
            continue
        text = "".join(block(number, k == 0) for k, number in enumerate(ids))
        have = len(ids) * BLOCK_TOKENS
        if have > length:  # words are split at their spaces, each a token
            text = " ".join(text.split(" ")[: length - words.before])
        texts.append(text + own.more(max(0, length - have)))
    return texts, lengths.tolist()
