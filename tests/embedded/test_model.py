"""The model that ships: readable by an independent implementation, and not broken."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import tiktoken
import torch
from transformers import GPT2LMHeadModel

from embedded.evaluate import complete, stream_loss
from embedded.report import BEGIN, END, README_FILE, read_report, render, write_report
from embedded.vocabulary import END_OF_TEXT, FOLDER
from models.gpt2 import GPT, causal_attention

SNIPPET = '''"""Counts the words of a text file."""

import collections
import sys


class WordCounter:
    """Collects how often each word was seen."""

    def __init__(self, minimum=1):
        self.minimum = minimum
        self.counts = collections.Counter()

    def add(self, line):
        for word in line.split():
            self.counts[word.lower()] += 1

    def report(self, file=None):
        if file is None:
            file = sys.stdout
        for word, count in sorted(self.counts.items()):
            if count >= self.minimum:
                print(word, count, file=file)


def main():
    counter = WordCounter()
    with open(sys.argv[1], encoding="utf-8") as f:
        for line in f:
            counter.add(line)
    counter.report()


if __name__ == "__main__":
    main()
'''


def snippet_stream(encoding: tiktoken.Encoding) -> torch.Tensor:
    separator = encoding.encode_single_token(END_OF_TEXT)
    return torch.tensor([separator, *encoding.encode_ordinary(SNIPPET)])


def test_transformers_reads_the_folder_and_computes_the_same_logits(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    theirs = GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32)  # in eval mode
    context = network.config.context
    short = snippet_stream(encoding)
    full = torch.randint(
        0, encoding.n_vocab, (context,), generator=torch.Generator().manual_seed(1)
    )
    for ids in (short, full):
        with torch.inference_mode():
            hidden = network(ids[None], torch.arange(len(ids)), causal_attention)
            difference = network.head(hidden) - theirs(ids[None]).logits
        assert difference.abs().max() <= 1e-4


def test_the_vocabulary_and_the_network_have_the_same_size(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    assert network.config.vocab_size == encoding.n_vocab
    assert network.config.context == 1024


def test_python_code_it_never_saw_takes_less_than_one_and_a_half_bits_a_character(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    stream = snippet_stream(encoding)
    nats = stream_loss(network, stream) * (len(stream) - 1)
    assert nats / math.log(2) / len(SNIPPET) < 1.5


def test_it_predicts_equally_well_at_the_end_and_the_start_of_the_context(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    # the same text after 700 tokens of itself can only be easier to predict
    stream = snippet_stream(encoding)
    repeated = stream.repeat(network.config.context // len(stream) + 1)[: network.config.context]
    with torch.inference_mode():
        hidden = network(repeated[None, :-1], torch.arange(len(repeated) - 1), causal_attention)
        losses = torch.nn.functional.cross_entropy(
            network.head(hidden)[0], repeated[1:], reduction="none"
        )
    assert losses[-len(stream) :].mean() < losses[: len(stream)].mean()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("class Queue:\n    def __init__(", "self"),
        ("import os\nimport sys\n\nclass Reader:\n    def read(self):\n        return self", "."),
        ("for key, value in sorted(items.items()):", "\n"),
        ("def main():\n    pass\n\nif __name__ == '", "__main__"),
        ("try:\n    import json\nexcept ImportError", ":"),
    ],
)
def test_the_likeliest_next_token_is_what_python_needs(
    network: GPT, encoding: tiktoken.Encoding, prompt: str, expected: str
) -> None:
    assert complete(network, encoding, prompt, 1, temperature=0).startswith(expected)


def test_the_body_it_writes_for_a_loop_is_indented_python(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    prompt = "def total(self):\n    for i in range("
    text = prompt + complete(network, encoding, prompt, 60, temperature=0)
    lines = text.splitlines()
    assert lines[1].endswith("):")
    ast.parse("\n".join([*lines[:2], " " * 8 + "pass"]))
    assert lines[2].startswith(" " * 8)


def test_loss_of_a_stream_of_any_length_counts_each_token_once(network: GPT) -> None:
    context = network.config.context
    stream = torch.randint(0, 4096, (context + 11,), generator=torch.Generator().manual_seed(2))
    parts = stream_loss(network, stream[: context + 1]), stream_loss(network, stream[context:])
    expected = (parts[0] * context + parts[1] * 10) / (context + 10)
    assert stream_loss(network, stream) == pytest.approx(expected, rel=1e-5)


def test_the_shipped_model_is_smaller_than_15_megabytes() -> None:
    shipped = [path for path in FOLDER.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in shipped) < 15_000_000


def test_the_readme_quotes_the_figures_that_training_wrote(network: GPT) -> None:
    outcome = read_report(FOLDER)
    assert render(outcome) in (FOLDER / README_FILE).read_text()
    assert outcome.parameters == sum(p.numel() for p in network.parameters())


def test_a_report_replaces_only_its_own_part_of_the_readme(tmp_path: Path) -> None:
    outcome = read_report(FOLDER)
    (tmp_path / README_FILE).write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_report(outcome, tmp_path)
    assert (tmp_path / README_FILE).read_text() == f"before\n{render(outcome)}\nafter\n"
    assert read_report(tmp_path) == outcome
