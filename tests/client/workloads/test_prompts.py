"""Prompts that begin alike: shared prefixes, and Mooncake's blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from embedded.vocabulary import load_embedded_encoding

RECIPE = Recipe(requests=12, rate=2.0, prompt_tokens="uniform:3,9", output_tokens="uniform:2,6")


def test_shared_prompts_begin_with_one_of_so_many_texts() -> None:
    workload = make(replace(RECIPE, requests=40, prompts="shared:prefixes=3,tokens=20"))
    encoding = load_embedded_encoding()
    tokens = [encoding.encode_ordinary(r.prompt) for r in workload.requests]
    assert [len(t) for t in tokens] == [r.prompt_tokens for r in workload.requests]
    assert len({tuple(t[:20]) for t in tokens}) == 3
    assert len({tuple(t) for t in tokens}) == 40


def test_blocks_with_one_id_are_one_text_in_a_trace_that_names_them(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1030, "output_length": 2, "hash_ids": [7, 8, 9]},
        {"timestamp": 1000, "input_length": 1100, "output_length": 2, "hash_ids": [7, 8, 10]},
        {"timestamp": 2000, "input_length": 600, "output_length": 2, "hash_ids": [7, 11]},
        {"timestamp": 3000, "input_length": 600, "output_length": 2, "hash_ids": [12, 11]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = Recipe(requests=None, rate=None, arrivals=f"trace:mooncake,path={path}")
    encoding = load_embedded_encoding()
    a, b, c, d = (encoding.encode_ordinary(r.prompt) for r in make(recipe).requests)
    assert [len(p) for p in (a, b, c, d)] == [1030, 1100, 600, 600]
    assert a[:1024] == b[:1024]
    assert a[:512] == c[:512]
    assert c[512:] == d[512:]
    assert all(x != y for x, y in ((a[1024:1030], b[1024:1030]), (a[512:600], c[512:]), (c, d)))


@pytest.mark.parametrize(
    ("prompts", "words"),
    [("shared:prefixes=0", "greater than or equal to 1"), ("essay", "words, request, shared")],
)
def test_a_kind_that_cannot_be_is_refused(prompts: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make(replace(RECIPE, prompts=prompts))
