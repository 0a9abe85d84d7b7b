"""Vocabularies and growing text, against `tokenizers` and Python's own decoder."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import FrameType

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HubTokenizer
from transformers import GPT2Tokenizer

from embedded.vocabulary import END_OF_TEXT, VOCABULARY_FILE, write_ranks
from models.names import GPT2_NAMES
from tests.support.hash_app import byte_tokenizer
from text.tokenizer import Detokenizer, EncodingError, Tokenizer, VocabularyError
from text.vocabulary import load_tokenizer

TEXTS = [
    "def f(x):\n    return x + 1\n",
    "naïve café 😀 東京",
    "the cat the cat the cat",
    "  \t\n ",
] * 9
ANY_TEXT = st.text(st.characters(exclude_categories=()))


def train_hub_tokenizer() -> HubTokenizer:
    hub = HubTokenizer(models.BPE())
    hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hub.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    hub.train_from_iterator(TEXTS, trainer)
    return hub


def save(hub: HubTokenizer, kind: str, folder: Path) -> None:
    if kind == "tokenizer.json":
        hub.save(str(folder / kind))
    elif kind == "vocab.json":
        hub.model.save(str(folder))
    else:
        ranks = {bytes([byte]): byte for byte in range(256)} | {b"the": 256, b" cat": 257}
        write_ranks(ranks, folder / VOCABULARY_FILE)


@pytest.fixture(scope="module")
def hub() -> HubTokenizer:
    return train_hub_tokenizer()


@pytest.fixture(scope="module", params=["tokenizer.json", "vocab.json", VOCABULARY_FILE])
def tokenizer(
    request: pytest.FixtureRequest, hub: HubTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    save(hub, request.param, folder)
    return load_tokenizer(str(folder))


def decode(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode(errors="replace")


@given(text=ANY_TEXT)
def test_text_survives_the_way_to_ids_and_back(tokenizer: Tokenizer, text: str) -> None:
    plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert decode(tokenizer, tokenizer.encode(text)) == plain


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.json"])
@given(text=st.text() | st.sampled_from(TEXTS))
def test_ids_are_those_of_the_hub_library(
    hub: HubTokenizer, tmp_path_factory: pytest.TempPathFactory, kind: str, text: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / kind.replace(".", "-")
    if not folder.exists():
        folder.mkdir()
        save(hub, kind, folder)
    assert load_tokenizer(str(folder)).encode(text) == hub.encode(text).ids


@pytest.fixture(scope="module")
def composing(hub: HubTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As Qwen's."""
    normalizing = HubTokenizer.from_str(hub.to_str())
    normalizing.normalizer = normalizers.NFC()
    folder = tmp_path_factory.mktemp("composing")
    save(normalizing, "tokenizer.json", folder)
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
    called = set()

    def note(_frame: FrameType, event: str, function: object) -> None:
        if event == "c_call" and isinstance(getattr(function, "__self__", None), HubTokenizer):
            called.add(getattr(function, "__name__", ""))

    sys.setprofile(note)
    try:
        tokenizer.encode("a text")
        tokenizer.encode_template(f"{END_OF_TEXT}a text")
    finally:
        sys.setprofile(None)
    assert called <= {"encode_batch_fast"}


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
        ({"tokenizer_config.json": {"eos_token": END_OF_TURN}}, [END_OF_TURN]),
        ({"tokenizer_config.json": {"eos_token": {"content": END_OF_TURN}}}, [END_OF_TURN]),
        ({"tokenizer_config.json": {"eos_token": None}}, [END_OF_TEXT]),
        ({"config.json": {"eos_token_id": OTHER_ID}}, [OTHER_ID]),
        ({"config.json": {"eos_token_id": [OTHER_ID, 8]}}, [OTHER_ID, 8]),
        (
            {"config.json": {"eos_token_id": 8}, "generation_config.json": {"eos_token_id": 7}},
            [OTHER_ID],
        ),
        (
            {"config.json": {"eos_token_id": OTHER_ID}, "generation_config.json": {"top_p": 0.9}},
            [OTHER_ID],
        ),
        (
            {
                "config.json": {"eos_token_id": OTHER_ID},
                "tokenizer_config.json": {"eos_token": END_OF_TURN},
            },
            [OTHER_ID, END_OF_TURN],
        ),
    ],
)
def test_a_checkpoints_own_files_say_which_tokens_end_a_text(
    tmp_path: Path, files: dict[str, object], ends: list[int | str]
) -> None:
    hub = train_hub_tokenizer()
    hub.add_special_tokens([END_OF_TURN])
    save(hub, "tokenizer.json", tmp_path)
    for name, fields in files.items():
        (tmp_path / name).write_text(json.dumps(fields))
    found = load_tokenizer(str(tmp_path)).end_ids
    assert found == {end if isinstance(end, int) else hub.token_to_id(end) for end in ends}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_file_that_cannot_be_read_is_named(hub: HubTokenizer, tmp_path: Path, name: str) -> None:
    save(hub, "tokenizer.json", tmp_path)
    (tmp_path / name).write_text("[1, 2]")
    with pytest.raises(VocabularyError, match=f"/{name} cannot be read"):
        load_tokenizer(str(tmp_path))


def test_ids_beyond_the_vocabulary_read_as_valid_distinct_text(tokenizer: Tokenizer) -> None:
    beyond = range(tokenizer.vocab_size, tokenizer.vocab_size + 50_000)
    texts = {tokenizer.token_bytes(token).decode() for token in beyond}
    assert len(texts) == len(beyond)


def test_the_vocabulary_ends_where_its_ids_end(tokenizer: Tokenizer, hub: HubTokenizer) -> None:
    assert tokenizer.vocab_size in (hub.get_vocab_size(), 256 + 2 + 1)


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


def test_random_models_are_read_with_the_embedded_vocabulary() -> None:
    random, embedded = load_tokenizer("random:gpt2-medium"), load_tokenizer("embedded")
    assert random.encode(TEXTS[0]) == embedded.encode(TEXTS[0])
    assert decode(embedded, embedded.encode(TEXTS[1])) == TEXTS[1]
    assert random.token_bytes(50_000).decode() == "<|50000|>"


@pytest.mark.parametrize("model", ["no-such-folder", "random:gpt5", "random:"])
def test_an_unknown_model_is_refused_with_the_known_ones(model: str) -> None:
    with pytest.raises(VocabularyError, match="gpt2-medium"):
        load_tokenizer(model)


@pytest.mark.parametrize("content", ["", "[1]", '{"version": "9.0"}'])
def test_where_a_file_cannot_be_read_those_beside_it_are(
    hub: HubTokenizer, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(hub, "vocab.json", tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    assert load_tokenizer(str(tmp_path)).encode(TEXTS[0]) == hub.encode(TEXTS[0]).ids
    assert "vocab.json is read in its place" in capsys.readouterr().err
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(VocabularyError, match="is Qwen2Tokenizer; allowed without"):
        load_tokenizer(str(tmp_path))


def test_files_from_before_tokenizer_json_are_read_as_transformers_reads_them(
    hub: HubTokenizer, tmp_path: Path
) -> None:
    """GPT-2 with tokens that were added in 2020: one as a name, one as a word."""
    save(hub, "vocab.json", tmp_path)
    size = hub.get_vocab_size()
    for name, fields in {
        "added_tokens.json": {"<word>": size + 1, "<pad>": size},
        "special_tokens_map.json": {"pad_token": "<pad>", "bos_token": {"content": END_OF_TEXT}},
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"},
        "config.json": {"model_type": "gpt2", "vocab_size": size + 2},
    }.items():
        (tmp_path / name).write_text(json.dumps(fields))
    theirs, ours = GPT2Tokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))
    text = f"the cat<pad>{END_OF_TEXT} the <word>!"
    assert ours.encode_template(text) == theirs.encode(text)
    assert ours.special_ids == {END_OF_TEXT: 0, "<pad>": size}
    assert set(ours.encode(text)) & {0, size, size + 1} == {size + 1}


def test_tokens_without_a_row_in_the_network_are_text(hub: HubTokenizer, tmp_path: Path) -> None:
    """Of other modalities, and pads for which the network was not resized."""
    rows = hub.get_vocab_size()
    wider = train_hub_tokenizer()
    wider.add_special_tokens(["<image>"])
    wider.add_tokens([AddedToken("[WORD]", normalized=False)])
    save(wider, "tokenizer.json", tmp_path)
    ends = {"eos_token_id": 0, "vocab_size": rows}
    (tmp_path / "config.json").write_text(json.dumps(ends))
    tokenizer, text = load_tokenizer(str(tmp_path)), f"a <image>[WORD] {END_OF_TEXT}"
    assert tokenizer.vocab_size == len(tokenizer.spellings) == rows
    assert tokenizer.special_ids == {END_OF_TEXT: 0}
    assert max(tokenizer.encode(text)) < rows
    assert tokenizer.encode_template(text) == hub.encode(text).ids


def test_folders_without_a_byte_level_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"allowed: vocab\.tiktoken"):
        load_tokenizer(str(tmp_path))
    path = tmp_path / "tokenizer.json"
    for content in ("", "[1]", "{}", json.dumps({"model": {"type": "WordPiece"}})):
        path.write_text(content)
        with pytest.raises(VocabularyError, match=r"tokenizer\.json"):
            load_tokenizer(str(tmp_path))
    path.write_text(json.dumps({"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}))
    with pytest.raises(VocabularyError, match="cannot be read"):
        load_tokenizer(str(tmp_path))


def test_all_hub_names_share_one_vocabulary_and_are_known_to_the_loader() -> None:
    from models.shapes import GPT2_SHAPES

    assert set(GPT2_NAMES) == set(GPT2_SHAPES)
