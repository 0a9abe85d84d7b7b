"""Vocabularies and growing text, against `tokenizers` and Python's own decoder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as HubTokenizer
from transformers import GPT2Tokenizer

from models.embedded.vocabulary import END_OF_TEXT, VOCABULARY_FILE, write_ranks
from seams import LoadError
from tests.models.tokenizer_files import TOKENIZERS
from tests.support.hash_app import byte_tokenizer
from tests.text.strings import c_calls
from text.tokenizer import Detokenizer, EncodingError, Tokenizer
from text.vocabulary import load_tokenizer

TEXT = "def f(x):\n    return x + 1 # the cat\n"
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def hub_of(name: str) -> HubTokenizer:
    return HubTokenizer.from_str(json.dumps(TOKENIZERS[name]()))


def save(hub: HubTokenizer, folder: Path, kind: str = "tokenizer.json", **files: Any) -> None:
    """`files`: further ones, each without its `.json`."""
    if kind == "tokenizer.json":
        hub.save(str(folder / kind))
    elif kind == "vocab.json":
        hub.model.save(str(folder))
    else:
        ranks = {bytes([byte]): byte for byte in range(256)} | {b"the": 256, b" cat": 257}
        write_ranks(ranks, folder / VOCABULARY_FILE)
    for name, fields in files.items():
        (folder / f"{name}.json").write_text(json.dumps(fields))


@pytest.fixture(scope="module")
def hub() -> HubTokenizer:
    return hub_of("gpt2, OpenAI")


@pytest.fixture(scope="module", params=["tokenizer.json", "vocab.json", VOCABULARY_FILE])
def tokenizer(
    request: pytest.FixtureRequest, hub: HubTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    save(hub, folder, request.param)
    return load_tokenizer(str(folder))


def decode(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")


@given(text=ANY_TEXT)
def test_text_survives_the_way_to_ids_and_back(tokenizer: Tokenizer, text: str) -> None:
    plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert decode(tokenizer, tokenizer.encode(text)) == plain


@pytest.fixture(scope="module")
def composing(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("composing")
    save(hub_of("qwen"), folder)
    return load_tokenizer(str(folder))


@given(text=st.text("e\u03b1\u0313\u0300\u0345 ") | ANY_TEXT, most=st.integers(1, 5))
def test_a_text_has_the_least_tokens_that_its_length_allows(
    tokenizer: Tokenizer, composing: Tokenizer, text: str, most: int
) -> None:
    for one in (tokenizer, composing):
        tokens = len(one.encode(text))
        assert one.least_tokens(text) <= tokens
        for part in (one.head(text, most), one.tail(text, most)):
            assert len(one.encode(part)) >= min(most, tokens)


def test_encoding_releases_the_interpreters_lock(tokenizer: Tokenizer) -> None:
    """`encode` of the hub's library holds it."""
    with c_calls(HubTokenizer) as called:
        tokenizer.encode("a text")
        tokenizer.encode_template(f"{END_OF_TEXT}a text")
    assert set(called) <= {"encode_batch_fast"}


def test_special_tokens_in_a_text_are_plain_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(f"a{END_OF_TEXT}b")
    (end_id,) = tokenizer.end_ids
    assert end_id not in tokens
    assert decode(tokenizer, tokens) == f"a{END_OF_TEXT}b"
    assert tokenizer.token_bytes(end_id) == END_OF_TEXT.encode()


END_OF_TURN = "<|im_end|>"
OTHER_ID = 7


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, [END_OF_TEXT]),
        ({"tokenizer_config": {"eos_token": None}}, [END_OF_TEXT]),
        ({"tokenizer_config": {"eos_token": {"content": END_OF_TURN}}}, [END_OF_TURN]),
        ({"config": {"eos_token_id": [OTHER_ID, 8]}}, [OTHER_ID, 8]),
        ({"config": {"eos_token_id": 8}, "generation_config": {"eos_token_id": 7}}, [OTHER_ID]),
        (
            {
                "config": {"eos_token_id": OTHER_ID},
                "generation_config": {"top_p": 0.9},
                "tokenizer_config": {"eos_token": END_OF_TURN},
            },
            [OTHER_ID, END_OF_TURN],
        ),
    ],
)
def test_a_checkpoints_own_files_say_which_tokens_end_a_text(
    tmp_path: Path, files: dict[str, object], ends: list[int | str]
) -> None:
    hub = hub_of("gpt2, OpenAI")
    hub.add_special_tokens([END_OF_TURN])
    save(hub, tmp_path, "tokenizer.json", **files)
    found = load_tokenizer(str(tmp_path)).end_ids
    assert found == {end if isinstance(end, int) else hub.token_to_id(end) for end in ends}


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_a_file_that_cannot_be_read_is_named(hub: HubTokenizer, tmp_path: Path, name: str) -> None:
    save(hub, tmp_path, "tokenizer.json", **{name: [1, 2]})
    with pytest.raises(LoadError, match=f"/{name}.json cannot be read"):
        load_tokenizer(str(tmp_path))


def test_ids_beyond_the_vocabulary_read_as_valid_distinct_text(tokenizer: Tokenizer) -> None:
    beyond = range(tokenizer.vocab_size, tokenizer.vocab_size + 50_000)
    texts = {tokenizer.token_bytes(token).decode() for token in beyond}
    assert len(texts) == len(beyond)


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=12))
def test_pieces_joined_are_the_text_of_the_whole(data: bytes, cuts: list[int]) -> None:
    detokenizer = Detokenizer(byte_tokenizer())
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [detokenizer.push(data[a:b]) for a, b in itertools.pairwise(edges)]
    assert "".join(pieces) + detokenizer.finish() == data.decode(errors="replace")


@given(text=st.text(min_size=1, max_size=20))
def test_no_piece_ends_in_half_a_character(text: str) -> None:
    detokenizer = Detokenizer(byte_tokenizer())
    so_far = ""
    for byte in text.encode():
        so_far += detokenizer.push([byte])
        assert text.startswith(so_far)
    assert so_far == text


def test_a_text_that_makes_the_library_panic_is_an_error_of_that_text() -> None:
    """A panic is no Exception; uncaught it would end the server's worker."""
    gpt2_pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    encoding = tiktoken.Encoding(
        "test",
        pat_str=gpt2_pattern,
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={},
    )
    tokenizer = Tokenizer(encoding.encode_ordinary, {0: b"\0"}, [])
    with pytest.raises(EncodingError, match="1000001 characters"):
        tokenizer.encode(" " * 1_000_000 + "a")


def test_random_models_are_read_with_the_embedded_vocabulary_and_others_are_refused() -> None:
    random, embedded = load_tokenizer("random:gpt2-medium"), load_tokenizer("embedded")
    assert random.encode(TEXT) == embedded.encode(TEXT)
    assert random.token_bytes(50_000).decode() == "<|50000|>"
    for model in ("no-such-folder", "random:gpt5", "random:"):
        with pytest.raises(LoadError, match="gpt2-medium"):
            load_tokenizer(model)


@pytest.mark.parametrize("content", ["", '{"version": "9.0"}'])
def test_where_a_file_cannot_be_read_those_beside_it_are(
    hub: HubTokenizer, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(hub, tmp_path, "vocab.json")
    (tmp_path / "tokenizer.json").write_text(content)
    assert load_tokenizer(str(tmp_path)).encode(TEXT) == hub.encode(TEXT).ids
    assert "vocab.json is read in its place" in capsys.readouterr().err
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(LoadError, match="is Qwen2Tokenizer; allowed without"):
        load_tokenizer(str(tmp_path))


def test_files_from_before_tokenizer_json_are_read_as_transformers_reads_them(
    hub: HubTokenizer, tmp_path: Path
) -> None:
    """GPT-2 with tokens that were added in 2020: one as a name, one as a word."""
    size = hub.get_vocab_size()
    save(
        hub,
        tmp_path,
        "vocab.json",
        added_tokens={"<word>": size + 1, "<pad>": size},
        special_tokens_map={"pad_token": "<pad>", "bos_token": {"content": END_OF_TEXT}},
        tokenizer_config={"tokenizer_class": "GPT2Tokenizer"},
        config={"model_type": "gpt2", "vocab_size": size + 2},
    )
    theirs, ours = GPT2Tokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))
    text = f"the cat<pad>{END_OF_TEXT} the <word>!"
    assert ours.encode_template(text) == theirs.encode(text)
    end = hub.token_to_id(END_OF_TEXT)
    assert ours.special_ids == {END_OF_TEXT: end, "<pad>": size}
    assert set(ours.encode(text)) & {end, size, size + 1} == {size + 1}


def test_tokens_without_a_row_in_the_network_are_text(hub: HubTokenizer, tmp_path: Path) -> None:
    """Of other modalities, and pads for which the network was not resized."""
    rows, end = hub.get_vocab_size(), hub.token_to_id(END_OF_TEXT)
    wider = hub_of("gpt2, OpenAI")
    wider.add_special_tokens(["<image>"])
    wider.add_tokens([AddedToken("[WORD]", normalized=False)])
    save(wider, tmp_path, config={"eos_token_id": end, "vocab_size": rows})
    tokenizer, text = load_tokenizer(str(tmp_path)), f"a <image>[WORD] {END_OF_TEXT}"
    assert tokenizer.vocab_size == len(tokenizer.spellings) == rows
    assert tokenizer.special_ids == {END_OF_TEXT: end}
    assert max(tokenizer.encode(text)) < rows
    assert tokenizer.encode_template(text) == hub.encode(text).ids


BPE: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0}, "merges": []}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"allowed: vocab\.tiktoken"),
        ([1], r"tokenizer\.json"),
        ({"model": {"type": "WordPiece"}}, r"tokenizer\.json"),
        ({"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}, "cannot be read"),
        ({"model": BPE}, r"BPE and None; allowed: .*byte_fallback"),
    ],
)
def test_folders_without_a_vocabulary_of_bytes_are_refused(
    tmp_path: Path, content: object, reason: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(LoadError, match=reason):
        load_tokenizer(str(tmp_path))


@pytest.fixture(params=["llama 2", "mistral 3", "gemma"])
def sentencepiece(request: pytest.FixtureRequest) -> HubTokenizer:
    """With a space before every text, before the first text, before none; without Gemma's runs of
    blanks, which are tokens before any flag is looked at."""
    fields = TOKENIZERS[request.param]()
    fields["added_tokens"] = [added for added in fields["added_tokens"] if added["special"]]
    return HubTokenizer.from_str(json.dumps(fields))


def loaded(hub: HubTokenizer, folder: Path, **config: object) -> Tokenizer:
    save(hub, folder, generation_config=config)
    return load_tokenizer(str(folder))


def test_an_end_that_is_no_special_token_of_its_file_is_one_here(
    sentencepiece: HubTokenizer, tmp_path: Path
) -> None:
    sentencepiece.add_tokens([AddedToken("<end>", special=False)])
    end = sentencepiece.token_to_id("<end>")
    assert end is not None
    tokenizer = loaded(sentencepiece, tmp_path, eos_token_id=end)
    assert end not in tokenizer.encode("a<end>b")
    assert tokenizer.encode_template("a<end>").count(end) == 1


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_tokens_of_a_template_take_the_blanks_that_their_flags_name(
    sentencepiece: HubTokenizer, flag: str, tmp_path: Path
) -> None:
    """As Phi-3's and masks do."""
    flags = {flag: True, "normalized": False}
    sentencepiece.add_special_tokens([AddedToken("<|user|>", **flags), "<|end|>"])
    sentencepiece.add_tokens([AddedToken("<mask>", **flags)])
    tokenizer = loaded(sentencepiece, tmp_path)
    for text in (
        "a \n <|user|> \n b <mask> <|end|> c", "<|user|>  <|user|>", "x<|user|> <|user|>y <|user|>",
        "<|end|> <|user|> <|end|>", " <|user|> ", "_<mask>  <mask>é", "a<|user|>b<|end|>",
    ):  # fmt: skip
        expected = sentencepiece.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_template(text) == expected
    shielded = tokenizer.shield(" <|user|> ")
    assert tokenizer.encode_template(f"a{shielded}") == tokenizer.encode("a <|user|> ")
