from __future__ import annotations

from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from embedded.bpe import train_ranks
from embedded.vocabulary import (
    END_OF_TEXT,
    load_embedded_encoding,
    make_encoding,
    read_ranks,
    write_ranks,
)

ENCODING = load_embedded_encoding()
CODE = st.text(alphabet="def (self):\n\t _x01.,='\"äß€\r😀\u0301\u2028", max_size=200)


@given(st.text() | CODE)
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    assert ENCODING.decode(ENCODING.encode_ordinary(text)) == text


@given(st.binary(max_size=60))
def test_any_bytes_have_tokens(data: bytes) -> None:
    tokens = [ENCODING.encode_single_token(bytes([byte])) for byte in data]
    assert ENCODING.decode_bytes(tokens) == data


def test_every_id_decodes_to_its_own_bytes(encoding: tiktoken.Encoding) -> None:
    decoded = [encoding.decode_single_token_bytes(token) for token in range(encoding.n_vocab)]
    assert all(decoded)
    assert len(set(decoded)) == encoding.n_vocab == 4096
    assert {bytes([byte]) for byte in range(256)} <= set(decoded)


def test_the_special_token_is_the_last_id_and_plain_text_in_a_prompt(
    encoding: tiktoken.Encoding,
) -> None:
    assert encoding.encode_single_token(END_OF_TEXT) == encoding.n_vocab - 1
    assert encoding.n_vocab - 1 not in encoding.encode_ordinary(f"a{END_OF_TEXT}b")


def test_a_prompt_cut_at_a_newline_bracket_or_dot_has_the_tokens_of_the_longer_text(
    encoding: tiktoken.Encoding,
) -> None:
    text = "for i in range(len(self.items)):\n    self.total += 1\n"
    whole = encoding.encode_ordinary(text)
    for cut in ("for i in range(", "for i in range(len(self.", text[: text.index("\n") + 1]):
        prefix = encoding.encode_ordinary(cut)
        assert whole[: len(prefix)] == prefix


def test_python_code_takes_less_than_half_a_token_a_character(encoding: tiktoken.Encoding) -> None:
    code = "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n"
    assert len(encoding.encode_ordinary(code)) < len(code) / 2


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


def test_too_little_text_for_the_wanted_size_is_refused() -> None:
    with pytest.raises(ValueError, match="too little text"):
        train_ranks(["ab"], 300)
