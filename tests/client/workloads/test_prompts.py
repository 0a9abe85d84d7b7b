"""Prompts that begin alike: shared prefixes, conversations, and Mooncake's blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from client.workloads.workload_file import read_workload, write_workload
from embedded.vocabulary import load_embedded_encoding


def alike(a: list[int], b: list[int]) -> int:
    """How many tokens two prompts begin with in common."""
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


RECIPE = Recipe(requests=12, rate=2.0, prompt_tokens="uniform:3,9", output_tokens="uniform:2,6")


def test_shared_prompts_begin_with_one_of_so_many_texts() -> None:
    workload = make(replace(RECIPE, requests=40, prompts="shared:prefixes=3,tokens=20"))
    encoding = load_embedded_encoding()
    tokens = [encoding.encode_ordinary(r.prompt) for r in workload.requests]
    assert [len(t) for t in tokens] == [r.prompt_tokens for r in workload.requests]
    assert len({tuple(t[:20]) for t in tokens}) == 3
    assert len({tuple(t) for t in tokens}) == 40


def test_a_turn_of_a_conversation_contains_the_earlier_turns_in_the_requested_lengths() -> None:
    workload = make(replace(RECIPE, prompts="conversation:turns=3,gap=1"))
    encoding = load_embedded_encoding()
    longest_first = sorted(workload.requests, key=lambda r: -len(r.prompt))
    conversations: list[list[str]] = []
    for r in longest_first:  # what is said later begins with what was said before
        mine = next((c for c in conversations if c[-1].startswith(r.prompt)), None)
        if mine is None:
            conversations.append([r.prompt])
        else:
            mine.append(r.prompt)
    assert [len(c) for c in conversations] == [3] * 4
    by_prompt = {r.prompt: r for r in workload.requests}
    for turns in conversations:
        last, middle, first = (by_prompt[prompt] for prompt in turns)
        assert (first.at_s or 0.0) <= (middle.at_s or 0.0) <= (last.at_s or 0.0)
        for before, after in ((first, middle), (middle, last)):
            assert before.prompt_tokens is not None
            assert after.prompt_tokens is not None
            own = after.prompt_tokens - before.prompt_tokens - before.output_tokens
            assert 3 <= own <= 9
            assert len(encoding.encode_ordinary(after.prompt)) == after.prompt_tokens


def test_conversations_keep_the_number_and_the_order_and_read_back(tmp_path: Path) -> None:
    asked = replace(RECIPE, requests=11, prompts="conversation:turns=4,gap=3")
    workload = make(asked)
    assert len(workload.requests) == 11
    assert not workload.steady
    write_workload(workload, tmp_path / "w")
    assert read_workload(tmp_path / "w") == workload
    exact = make(replace(asked, exact_duration=True))
    assert exact.duration_s == pytest.approx(11 / 2.0)
    assert exact.requests[-1].at_s == pytest.approx(11 / 2.0, abs=1e-6)


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
    prompts = [encoding.encode_ordinary(r.prompt) for r in make(recipe).requests]
    assert [len(p) for p in prompts] == [1030, 1100, 600, 600]
    assert alike(prompts[0], prompts[1]) == 1024
    assert alike(prompts[0], prompts[2]) == 512
    assert alike(prompts[2], prompts[3]) == 0
    assert prompts[2][512:] == prompts[3][512:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": "shared:prefixes=0"}, "at least 1"),
        ({"prompts": "conversation:turns=0"}, "turns must be at least 1"),
        ({"prompts": "conversation:gap=-1"}, "gap must be"),
        ({"prompts": "conversation:speed=1"}, "allowed: turns, gap"),
        ({"prompts": "essay"}, "shared:..., conversation:..."),
    ],
)
def test_a_kind_that_cannot_be_is_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make(replace(RECIPE, **change))  # type: ignore[arg-type]


def test_a_conversation_does_not_go_with_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3, "output_length": 2}\n')
    trace = Recipe(
        requests=None, rate=None, arrivals=f"trace:mooncake,path={path}", prompts="conversation"
    )
    with pytest.raises(SpecError, match="cannot be combined with a trace"):
        make(trace)
