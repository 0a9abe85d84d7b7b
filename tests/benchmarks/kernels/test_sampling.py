"""The benchmark of sampling measures every kind beside greedy."""

from __future__ import annotations

import torch

from benchmarks.kernels.sampling import card, measure


def test_each_kind_has_its_ratio_to_greedy() -> None:
    results = measure("embedded", "float32", ["greedy", "top_p 0.9"], tokens=2, rounds=1)
    assert [result.kind for result in results] == ["greedy", "top_p 0.9"]
    assert results[0].to_greedy.value == 1
    assert all(result.tokens_per_s[0] > 0 for result in results)
    assert card(results).count("| embedded | float32 |") == 2


def test_a_small_model_leaves_the_next_one_all_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure("embedded", "float32", ["greedy"], tokens=1, rounds=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
