"""The benchmark of masks measures what it says."""

from __future__ import annotations

from benchmarks.masks import SIDES, card, measure, tokenizer_of


def test_sides_are_measured() -> None:
    results, first = measure("embedded", "float32", iterations=6, rounds=1)
    assert [result.side for result in results] == list(SIDES)
    none, _, records, text = results
    assert none.drawn_per_s == none.tokens_per_s
    assert records.tokens_per_s > records.drawn_per_s
    assert text.tokens_per_s == text.drawn_per_s
    assert first.median_ms > 0
    assert "embedded" in card(results, [first])


def test_a_random_model_has_as_many_words_as_its_network() -> None:
    tokenizer = tokenizer_of("random:qwen3-0.6b", 20_000)
    assert len(set(tokenizer.spellings)) == 20_000
