"""What single benchmarks compute themselves: a stall, forced tokens, the suite of JSON schemas."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.json_schema import download, tried
from benchmarks.long_prompts import Played
from benchmarks.masks import SIDES, measure, tokenizer_of


def test_a_stall_is_the_itl_to_that_of_the_same_tokens_without_the_prompts() -> None:
    alone_s = np.linspace(1.0, 2.0, 101)  # contexts grow
    alone_s[70] = 9.0  # something else ran on the machine
    beside_s = np.linspace(1.0, 2.0, 101)
    beside_s[60:90] *= 2.5
    played = Played(beside_s, slice(60, 90), 0.0, 1.0, alone_s)
    assert played.stall() == pytest.approx(2.5, rel=0.02)


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


@pytest.mark.long
def test_grammars_take_no_value_that_is_none_of_its_schema(tmp_path: Path) -> None:
    try:
        folder = download(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot download the source distribution of jsonschema")
    found = tried(folder)
    assert found.values > 900
    taken = [(name, text) for name, _, text in found.taken]
    # the byte order mark is a blank in ECMAScript's expressions, not in Rust's
    assert taken == [("optional/ecmascript-regex", '"\ufeff"')]
