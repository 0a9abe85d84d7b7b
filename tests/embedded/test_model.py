"""The model that ships and its vocabulary: readable by an independent implementation, and not
broken."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiktoken
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2LMHeadModel

from embedded.bpe import train_ranks
from embedded.evaluate import complete, stream_loss
from embedded.report import README_FILE, read_report, render
from embedded.vocabulary import (
    END_OF_TEXT,
    FOLDER,
    load_embedded_encoding,
    make_encoding,
    read_ranks,
    write_ranks,
)
from models.gpt2 import GPT, causal_attention
from models.weights.checkpoint import load_checkpoint

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


@pytest.fixture(scope="module")
def encoding() -> tiktoken.Encoding:
    return load_embedded_encoding()


@pytest.fixture(scope="module")
def network() -> GPT:
    return load_checkpoint(FOLDER).eval().requires_grad_(False)


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


def test_python_code_it_never_saw_takes_less_than_one_and_a_half_bits_a_character(
    network: GPT, encoding: tiktoken.Encoding
) -> None:
    stream = snippet_stream(encoding)
    nats = stream_loss(network, stream) * (len(stream) - 1)
    assert nats / math.log(2) / len(SNIPPET) < 1.5


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


def test_the_readme_quotes_the_figures_that_training_wrote(network: GPT) -> None:
    outcome = read_report(FOLDER)
    assert render(outcome) in (FOLDER / README_FILE).read_text()
    assert outcome.parameters == sum(p.numel() for p in network.parameters())


CODE = st.text(alphabet="def (self):\n\t _x01.,='\"äß€\r😀\u0301\u2028", max_size=200)


@given(st.text() | CODE)
def test_any_text_survives_encoding_and_decoding(encoding: tiktoken.Encoding, text: str) -> None:
    assert encoding.decode(encoding.encode_ordinary(text)) == text


def test_the_special_token_is_the_last_id_and_plain_text_in_a_prompt(
    encoding: tiktoken.Encoding,
) -> None:
    assert encoding.encode_single_token(END_OF_TEXT) == encoding.n_vocab - 1
    assert encoding.n_vocab - 1 not in encoding.encode_ordinary(f"a{END_OF_TEXT}b")


def test_trained_ranks_are_the_same_each_time_and_survive_their_file(tmp_path: Path) -> None:
    texts = [
        "for one in range(100):\n    print(one, 'naïve €')\n",
        "def one(self):\n    return one\n",
    ]
    ranks = train_ranks(texts, 280)
    write_ranks(ranks, tmp_path / "ranks")
    assert ranks == train_ranks(texts, 280) == read_ranks(tmp_path / "ranks")
    assert list(ranks.values()) == list(range(280))
    assert [token for token in ranks if len(token) == 1] == [bytes([byte]) for byte in range(256)]
    small = make_encoding(ranks)
    assert len(small.encode_ordinary(texts[0])) < len(texts[0])
    assert small.decode(small.encode_ordinary(texts[0])) == texts[0]
