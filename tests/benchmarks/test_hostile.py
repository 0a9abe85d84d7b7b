"""50 hostile constraints at once, beside 32 streams: each is refused or served, and no stream is
another one."""

from __future__ import annotations

from benchmarks import hostile
from benchmarks.hostile import HOSTILE, STREAMS, run
from model import LoadOptions, load_model
from runtime.grammar.grammars import Grammars
from text.vocabulary import load_tokenizer


def test_no_two_hostile_constraints_are_alike() -> None:
    assert len({hostile.hostile(number) for number in range(HOSTILE)}) == HOSTILE


def test_streams_beside_hostile_constraints_end_as_they_should() -> None:
    model = load_model(LoadOptions("dynamic", "embedded", "cpu", "float32", 0, 96))
    tokenizer = load_tokenizer("embedded")
    prompt = tokenizer.encode("def main():\n    return")
    result = run(model, Grammars(lambda: tokenizer), prompt, 0)
    assert result.p99_ms[0] > 0
    assert 0 <= result.served + result.failed < HOSTILE
    assert STREAMS == 32
