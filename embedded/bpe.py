"""Finds the ranks of a byte-level BPE vocabulary (Sennrich et al., ACL '16) with `tokenizers`.

Only training needs this; `vocabulary.py` reads the result.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from embedded.vocabulary import PATTERN, bytes_of_characters


def train_ranks(texts: Iterable[str], size: int) -> dict[bytes, int]:
    """Token bytes -> rank: the 256 bytes first, then merges in the order in which they were found.

    ValueError if there is too little text for `size` ranks.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    byte_of = bytes_of_characters()
    found = tokenizer.get_vocab()
    tokens = [bytes(byte_of[c] for c in token) for token in sorted(found, key=found.__getitem__)]
    merged = [token for token in tokens if len(token) > 1]
    ranks = {token: rank for rank, token in enumerate([bytes([b]) for b in range(256)] + merged)}
    if len(ranks) != size:
        raise ValueError(f"the corpus yields {len(ranks)} tokens, not {size}: too little text")
    return ranks
