"""`--max-model-len`: memory is planned for it, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from generate.dynamic import lay_out
from model import LoadOptions, ModelOptionError, load_model
from runtime.executor import Executor
from tests.bare import Bare
from tests.models.families import CONTEXT

ROWS, LIMIT = 4, 40


@pytest.fixture(scope="module")
def folder(checkpoint: tuple[Path, object]) -> Path:
    return checkpoint[0]


def limited(folder: Path, tokens: int | None) -> Executor:
    asked = LoadOptions("dynamic", str(folder), "cpu", "float32", 0, ROWS, max_model_len=tokens)
    return load_model(asked)


def answers(model: Executor) -> list[list[int]]:
    bare = Bare(model, lay_out)
    sequences = bare.open([[5, 6, 7], list(range(20))], LIMIT - 20)
    for _ in range(LIMIT - 20):
        bare.advance(sequences)
    return [list(sequence.ids) for sequence in sequences]


def test_memory_is_planned_for_the_limit_and_tokens_stay_the_same(folder: Path) -> None:
    whole, short = limited(folder, None), limited(folder, LIMIT)
    assert (whole.context, short.context) == (CONTEXT, LIMIT)
    assert whole.num_blocks == ROWS * 6
    assert short.num_blocks == ROWS * 3
    assert short.info.parameters == whole.info.parameters
    assert answers(short) == answers(whole)


def test_more_than_the_models_context_is_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(ModelOptionError, match=rf"is 97, .* has {CONTEXT} tokens"):
        limited(folder, CONTEXT + 1)
