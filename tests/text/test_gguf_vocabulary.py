"""Vocabularies of GGUF files, against the ids that llama.cpp gives: recorded ones for small
vocabularies and for SmolLM2's."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.weights.gguf_header import read_header
from seams import LoadError
from tests.smollm2 import FILE
from tests.text import llama
from tests.text.llama import VARIANTS, recorded
from tests.text.strings import CHOSEN
from text.chat import load_chat_template
from text.gguf_vocabulary import from_metadata
from text.tokenizer import EncodingError, Tokenizer
from text.vocabulary import load_tokenizer

CASES = [(kind, name) for kind, variants in VARIANTS.items() for name in variants]


def tokenizer_of(kind: str, name: str, **changes: Any) -> Tokenizer:
    fields = {**recorded(kind)["fields"], **VARIANTS[kind][name], **changes}
    return from_metadata(llama.named(fields), "vocabulary.gguf")


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_ids_are_those_of_llama_cpp_and_their_bytes_are_the_text(kind: str, name: str) -> None:
    tokenizer = tokenizer_of(kind, name, add_bos_token=False)
    special_ids = set(tokenizer.special_ids.values())
    assert [tokenizer.encode(text) for text in llama.TEXTS] == recorded(kind)[name]
    found = [tokenizer.encode_template(text) for text in llama.TEXTS]
    assert found == recorded(kind)[f"{name}, special"]
    assert any(set(ids) & special_ids for ids in found)
    for text in (*llama.TEXTS, *tokenizer.special_ids):
        ids = tokenizer.encode(text)
        assert not set(ids) & special_ids
        if any(whole in text for whole in llama.WHOLE):
            continue  # a text after such a token has a space of its own, too
        spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
        expected = text.replace("▁", " ") if kind == "sentencepiece" else text
        assert spelled == (" " if name == "llama" and text else "") + expected


def test_a_prompt_begins_once_where_the_file_or_else_its_family_asks_for_it() -> None:
    asks = tokenizer_of("sentencepiece", "llama")
    assert asks.encode_template("<s>a") == asks.encode_prompt("a") == [1, *asks.encode("a")]
    fields = {**recorded("byte-level")["fields"]}
    del fields["add_bos_token"]
    for name, begins in {"llama-bpe": True, "tekken": True, "qwen2": False}.items():
        tokenizer = from_metadata(llama.named({**fields, "pre": name}), "vocabulary.gguf")
        assert (tokenizer.bos_id == 1) == begins
    unnamed = from_metadata(llama.named(fields), "vocabulary.gguf")
    assert [unnamed.encode(text) for text in llama.TEXTS] == recorded("byte-level")["default"]


def test_all_that_the_file_calls_an_end_ends_an_answer() -> None:
    by_name = {0, 2}  # <|endoftext|> and <|im_end|>
    assert tokenizer_of("byte-level", "smollm").end_ids == by_name
    named = tokenizer_of("byte-level", "smollm", eos_token_id=5, eot_token_id=6, eom_token_id=1)
    assert named.end_ids == by_name | {1, 5, 6}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("byte-level", {"model": "bert"}, "model is 'bert'; allowed: gpt2, llama"),
        ("byte-level", {"pre": "viking"}, "'viking'; allowed: gpt-2, smollm, llama-bpe"),
        ("byte-level", {"merges": None}, "merges is missing"),
        ("byte-level", {"merges": ["ab"]}, "cannot be read"),
        ("byte-level", {"merges": [7]}, "cannot be read"),
        ("byte-level", {"tokens": ["a", "a"], "token_type": [1, 1]}, "a token twice"),
        ("byte-level", {"token_type": [1]}, "token_type has 1 entries; .* has"),
        ("byte-level", {"tokens": ["a" * 2000], "token_type": [1]}, "longer than 1024 characters"),
        ("byte-level", {"eos_token_id": 99_999}, "eos_token_id is 99999; allowed: 0 to"),
        ("sentencepiece", {"scores": [0.0]}, "scores has 1 entries"),
        ("sentencepiece", {"bos_token_id": None}, "bos_token_id is missing"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_refused_by_name(
    kind: str, changes: dict[str, Any], message: str
) -> None:
    name = next(iter(VARIANTS[kind]))
    with pytest.raises(LoadError, match=rf"vocabulary\.gguf: .*{message}"):
        tokenizer_of(kind, name, **changes)


KEYS = (
    "tokens", "token_type", "merges", "scores", "eos_token_id", "bos_token_id", "model", "pre",
    "weight",
)  # fmt: skip


@pytest.fixture(scope="module", params=[("byte-level", "smollm"), ("sentencepiece", "llama")])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    kind, name = request.param
    path = tmp_path_factory.mktemp("gguf") / "vocabulary.gguf"
    template = {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    llama.write_gguf({**recorded(kind)["fields"], **VARIANTS[kind][name]}, path, template)
    return path.read_bytes()


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_changed_or_cut_off_encodes_or_is_refused(
    data: st.DataObject, whole: bytes, tmp_path: Path
) -> None:
    """Near the beginning of a value lie its type, its length and its first entries."""
    changed = bytearray(whole)
    starts = [0, *(at + len(key) for key in KEYS if (at := whole.find(f".{key}".encode())) > 0)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(starts)) + data.draw(st.integers(0, 40))
        new = data.draw(st.binary(min_size=1, max_size=4))
        changed[at : at + len(new)] = new
    path = tmp_path / "changed.gguf"
    path.write_bytes(changed[: data.draw(st.sampled_from([None, len(whole) // 2]))])
    with contextlib.suppress(LoadError, EncodingError):
        for info in read_header(path).tensors.values():
            assert info.offset + info.row_bytes <= path.stat().st_size
        tokenizer = load_tokenizer(str(path))
        template = load_chat_template(str(path), tokenizer)
        template.encode([{"role": "user", "content": "Hello <|im_end|> 123 \N{SNOWMAN}"}])


def test_smollm2_has_the_ids_of_llama_cpp() -> None:
    if not FILE.exists():
        pytest.skip("--model smollm2 has not been fetched on this machine")
    tokenizer = load_tokenizer(str(FILE))
    rows = json.loads((llama.FOLDER / "smollm2.json").read_text())
    assert [tokenizer.encode(text) for text in CHOSEN] == rows
    template = load_chat_template(str(FILE), tokenizer)
    asked = template.encode([{"role": "user", "content": "Hi<|im_end|>"}])
    assert asked.count(2) == 2  # of the system's message and the user's
