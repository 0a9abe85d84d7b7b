"""What requests say: words of one token each, texts of a file, and prompts that begin alike: shared
prefixes, and the blocks of a recorded trace.

A server with a prefix cache computes a common beginning once. Words are one token each, so lengths
are exact, and equal beginnings are equal texts.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.workloads.lengths import Sizes
from client.workloads.spec import Count, SpecError, build, read_text
from client.workloads.words import Words

BLOCK_TOKENS = 512  # of Mooncake's hash_ids


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompt texts, and their lengths in tokens if known."""

    texts: list[str]
    tokens: list[int] | None


@dataclass(frozen=True, slots=True)
class Shared:
    """Each prompt begins with one of ``prefixes`` texts of ``tokens``, equally likely."""

    prefixes: Count = 4
    tokens: Count = 128


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
    return Prompts(texts, lengths.tolist())


def plain_prompts(kind: str, n: int, rng: np.random.Generator) -> Prompts:
    """``request``, ``sharegpt:FILE`` or ``lines:FILE``, which have the lengths that they have."""
    name, _, path = kind.partition(":")
    if name == "request":
        return Prompts([f"Request {i}" for i in range(n)], None)
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
    return Prompts([pool[i] for i in rng.integers(len(pool), size=n).tolist()], None)


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
    """Prompts of ``own`` tokens each behind ``shared:prefixes=4,tokens=128``."""
    shared = build(kind, {"shared": Shared}, "prompts")
    made, length = TextMaker(words, rng), max(shared.tokens, words.before + 1)
    prefixes = [made.first(shared.tokens) for _ in range(shared.prefixes)]
    chosen = rng.integers(shared.prefixes, size=own.size).tolist()
    texts = [prefixes[k] + made.more(n) for k, n in zip(chosen, own.tolist(), strict=True)]
    return Prompts(texts, (own + length).tolist())


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
    return Prompts(texts, lengths.tolist())
