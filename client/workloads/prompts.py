"""What requests say: words of one token each, texts of a file, and prompts that begin alike: shared
prefixes, conversations, and the blocks of a recorded trace.

A server with a prefix cache computes a common beginning once. Words are one token each, so lengths
are exact, and equal beginnings are equal texts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.workloads.lengths import Levels, Sizes
from client.workloads.spec import SpecError, allowed, build, read_text
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

    prefixes: int = allowed(4, least=1)
    tokens: int = allowed(128, least=1)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests come in conversations of ``turns``; the next turn follows ``gap`` s after the last.

    Gaps are exponential with that mean and run from turn to turn, whether or not the answer is
    there: an open loop. A turn's prompt is all that was said before and its own words. What the
    assistant said is made up, in the length that was asked for: every server reads the same.
    """

    turns: int = allowed(4, least=1)
    gap: float = allowed(10.0, least=0)


def parse_prefixed(prompts: str) -> Shared | Conversation | None:
    """``shared:prefixes=4,tokens=128`` or ``conversation:turns=4,gap=10``; None for other kinds."""
    name = prompts.partition(":")[0]
    if name == "shared":
        return build(prompts, {"shared": Shared}, "prompts")
    return build(prompts, {name: Conversation}, "prompts") if name == "conversation" else None


def lengths_are_chosen(prompts: str) -> bool:
    """Whether prompts are made up, so that their lengths can be chosen."""
    return prompts.partition(":")[0] in ("words", "shared", "conversation")


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
            f"prompts {kind!r} are unknown; allowed: words, request, shared:..., "
            "conversation:..., sharegpt:FILE, lines:FILE"
        )
    pool = (_read_sharegpt if name == "sharegpt" else _read_lines)(Path(path))
    return Prompts([pool[i] for i in rng.integers(len(pool), size=n).tolist()], None)


def _read_sharegpt(path: Path) -> list[str]:
    """First human turns of the published format: [{"conversations": [{"from", "value"}]}]."""
    text = read_text(path)
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: expected JSON, {error}") from None
    expected = '{"conversations": [{"from": "human", "value": text}, ...]}'
    if not isinstance(entries, list):
        raise SpecError(f"{path}: expected a list of {expected}")
    prompts = []
    for number, entry in enumerate(entries):
        try:
            turn = entry["conversations"][0] if entry["conversations"] else None
            if turn is not None and turn["from"] == "human" and turn["value"].strip():
                prompts.append(turn["value"])
        except (KeyError, TypeError, AttributeError):
            raise SpecError(f"{path}: entry {number}: expected {expected}") from None
    if not prompts:
        raise SpecError(f"{path} contains no conversation that a human begins")
    return prompts


def _read_lines(path: Path) -> list[str]:
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise SpecError(f"{path} contains no prompts")
    return lines


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


def prefixed_prompts(
    kind: Shared | Conversation,
    own: Sizes,
    output: Sizes,
    rng: np.random.Generator,
    words: Words,
) -> Prompts:
    """Prompts of ``own`` tokens each behind what they share; conversations one after another."""
    made, least = TextMaker(words, rng), words.before + 1
    if isinstance(kind, Shared):
        prefixes = [made.first(kind.tokens) for _ in range(kind.prefixes)]
        chosen = rng.integers(kind.prefixes, size=own.size).tolist()
        texts = [prefixes[k] + made.more(n) for k, n in zip(chosen, own.tolist(), strict=True)]
        return Prompts(texts, (own + max(kind.tokens, least)).tolist())
    texts, tokens = [], []
    said, length = "", 0
    for k, (asked, answered) in enumerate(zip(own.tolist(), output.tolist(), strict=True)):
        if k % kind.turns == 0:
            said, length = made.first(asked), max(asked, least)
        else:
            said, length = said + made.more(asked), length + asked
        texts.append(said)
        tokens.append(length)
        said, length = said + made.more(answered), length + answered
    return Prompts(texts, tokens)


def conversation_times(
    kind: Conversation,
    starts: Levels,
    n: int,
    rng: np.random.Generator,
) -> Levels:
    """When the n turns come, conversation by conversation, from when those begin; in seconds."""
    gaps = rng.exponential(kind.gap, (starts.size, kind.turns))
    gaps[:, 0] = 0.0
    return (starts[:, None] + np.cumsum(gaps, axis=1)).ravel()[:n]


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
    known: dict[tuple[int, bool], str] = {}
    lengths = np.maximum(lengths, words.before + 1)
    own = TextMaker(words, np.random.default_rng(seed))

    def block(number: int, begins: bool) -> str:
        if (number, begins) not in known:
            child = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, number))
            made = TextMaker(words, np.random.default_rng(child))
            known[number, begins] = made.first(BLOCK_TOKENS) if begins else made.more(BLOCK_TOKENS)
        return known[number, begins]

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
