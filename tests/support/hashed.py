"""What a hash of a prefix decides: the next token, its logprob, how many tokens a constraint forces
behind it, and which drafts are right. `reference` says what a request would get if it were alone.

    reference([1, 2, 3], 20, seed=7)                       # tokens of that request, alone
    reference([1, 2, 3], 20, seed=None)                    # the same with temperature 0
    reference_logprob([1, 2, 3], 4)                        # of token 4 after that prefix
"""

from __future__ import annotations

from collections.abc import Sequence

from seams import Drafts, TokenLogprobs

VOCAB_SIZE = 257
MOST_FORCED = 3


def reference(
    prompt: Sequence[int], n: int, seed: int | None, vocab_size: int = VOCAB_SIZE
) -> list[int]:
    """The first `n` tokens after `prompt` for a request that is alone; `seed` None is greedy."""
    state = absorb(0, prompt)
    tokens = []
    for _ in range(n):
        tokens.append(choose(state, seed, vocab_size))
        state = absorb(state, tokens[-1:])
    return tokens


def reference_logprob(prefix: Sequence[int], token: int, vocab_size: int = VOCAB_SIZE) -> float:
    """Of `token` after `prefix`: less, the further it is from the greedy one."""
    return logprob_of(absorb(0, prefix), token, vocab_size)


def absorb(state: int, tokens: Sequence[int]) -> int:
    for token in tokens:
        state = hash((state, token))  # hashes of integers are the same in every process
    return state


def choose(state: int, seed: int | None, vocab_size: int) -> int:
    return hash((state,) if seed is None else (state, seed)) % vocab_size


def forced(state: int) -> int:
    """How many tokens a constraint forces behind the newest."""
    return hash((state, MOST_FORCED)) % (MOST_FORCED + 1)


def drafted(state: int, most: int) -> Drafts:
    """Where up to `most` are asked for."""
    made = hash((state, 23)) % (most + 1)
    return Drafts(made, hash((state, 17)) % (made + 1))


def logprob_of(state: int, token: int, vocab_size: int) -> float:
    """No distribution, but finite, exact in binary, best for the greedy token, and another one
    after every prefix."""
    return -(1 + (token - choose(state, None, vocab_size)) % vocab_size) / 4


def logprobs_of(state: int, token: int, alternatives: int, vocab_size: int) -> TokenLogprobs:
    best = choose(state, None, vocab_size)
    top = [(best + rank) % vocab_size for rank in range(alternatives)]
    return TokenLogprobs(
        token,
        logprob_of(state, token, vocab_size),
        tuple((other, logprob_of(state, other, vocab_size)) for other in top),
    )
