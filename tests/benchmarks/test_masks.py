"""The benchmark of masks measures what it says."""

from __future__ import annotations

from benchmarks.masks import SIDES, measure, tokenizer_of


def test_forced_tokens_are_generated_and_not_drawn() -> None:
    found = measure("embedded", "float32", iterations=6, rounds=1)
    assert list(found.turns) == list(SIDES)
    none, _, records, text = ([*turns[0]] for turns in found.turns.values())
    assert none[0] == none[1]
    assert records[0] > records[1]
    assert text[0] == text[1]


def test_a_random_model_has_as_many_words_as_its_network() -> None:
    tokenizer = tokenizer_of("random:qwen3-0.6b", 20_000)
    assert len(set(tokenizer.spellings)) == 20_000
