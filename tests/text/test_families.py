"""Folders of the families beside GPT-2: byte-level and SentencePiece's vocabularies, against
`transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HubTokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tests.text import llama
from tests.text.test_gguf_vocabulary import recorded
from text.spelling import SPACE
from text.tokenizer import Tokenizer, VocabularyError
from text.vocabulary import load_tokenizer

FIRST = "<s>"
TEXTS = [text for text in llama.TEXTS if "\x00" not in text]


def sentencepiece(*, scheme: str) -> HubTokenizer:
    """As in folders of Llama 2 and Mistral; `scheme`: legacy (every text has a space before it),
    first (the first has one) or never (none, as in Gemma's)."""
    tokens = recorded("sentencepiece")["fields"]["tokens"]
    ids = {token: n for n, token in enumerate(tokens)}
    merges = [
        (token[:cut], token[cut:])
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    hub = HubTokenizer(BPE(ids, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if scheme == "first":
        hub.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    else:
        spaces = [normalizers.Replace(" ", SPACE)]
        before = [normalizers.Prepend(SPACE)] if scheme == "legacy" else []
        hub.normalizer = normalizers.Sequence([*before, *spaces])
    hub.decoder = decoders.Sequence(parts)
    hub.add_special_tokens(["<unk>", FIRST, "</s>", "[INST]"])
    hub.add_tokens([AddedToken("\n\n", normalized=False)])
    hub.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A", special_tokens=[(FIRST, ids[FIRST])]
    )
    return hub


@pytest.fixture(scope="module", params=["legacy", "first", "never"])
def hub(request: pytest.FixtureRequest) -> HubTokenizer:
    return sentencepiece(scheme=request.param)


@pytest.fixture(scope="module")
def tokenizer(hub: HubTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    hub.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    return load_tokenizer(str(folder))


def test_prompts_are_those_of_transformers(hub: HubTokenizer, tokenizer: Tokenizer) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=hub, bos_token=FIRST)
    for text in TEXTS:
        if not any(special in text for special in tokenizer.special_ids):
            assert tokenizer.encode_prompt(text) == theirs.encode(text)


def test_templates_are_those_of_transformers(hub: HubTokenizer, tokenizer: Tokenizer) -> None:
    theirs = PreTrainedTokenizerFast(tokenizer_object=hub, bos_token=FIRST)
    for text in (f"{FIRST}[INST] a b [INST]c\n\nd</s>", f"{FIRST}{FIRST}x", FIRST):
        assert tokenizer.encode_template(text) == theirs.encode(text, add_special_tokens=False)


def test_a_prompts_tokens_are_its_text(tokenizer: Tokenizer) -> None:
    """The token and the space that were put before it are not. Some vocabularies put none before a
    text that begins with a space: with and without, it is the same tokens."""
    for text in TEXTS:
        if not any(special in text for special in (*tokenizer.special_ids, "\n\n")):
            text = text.lstrip(" \u2581")
            pieces = list(tokenizer.prompt_bytes(tokenizer.encode_prompt(text)))
            assert pieces[0] == b""
            assert b"".join(pieces).decode() == text.replace(SPACE, " ")


def test_special_tokens_in_a_text_are_spelled(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("x</s>[INST]<s>")
    assert not set(ids) & set(tokenizer.special_ids.values())
    spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert spelled.removeprefix(" ") == "x</s>[INST]<s>"


def test_missing_characters_are_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\u4dff\x07")
    spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert spelled.removeprefix(" ") == "\u4dff\x07"


def test_all_ends_of_the_generation_config_count(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_ids == {2, 9}


def test_an_end_that_is_no_special_token_of_its_file_is_one_here(tmp_path: Path) -> None:
    hub = sentencepiece(scheme="never")
    hub.add_tokens([AddedToken("<end>", special=False)])
    end = hub.token_to_id("<end>")
    assert end is not None
    hub.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert end not in tokenizer.encode("a<end>b")
    assert tokenizer.encode_template("a<end>").count(end) == 1


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
@pytest.mark.parametrize("scheme", ["legacy", "first", "never"])
def test_tokens_of_a_template_take_the_blanks_that_their_flags_name(
    scheme: str, flag: str, tmp_path: Path
) -> None:
    """As Phi-3's and masks do."""
    hub = sentencepiece(scheme=scheme)
    flags = {flag: True, "normalized": False}
    hub.add_special_tokens([AddedToken("<|user|>", **flags), "<|end|>"])
    hub.add_tokens([AddedToken("<mask>", **flags)])
    hub.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    for text in (
        "a \n <|user|> \n b <mask> <|end|> c", "<|user|>  <|user|>", "x<|user|> <|user|>y <|user|>",
        "<|end|> <|user|> <|end|>", " <|user|> ", "_<mask>  <mask>é", "a<|user|>b<|end|>",
    ):  # fmt: skip
        expected = hub.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_template(text) == expected
    shielded = tokenizer.shield(" <|user|> ")
    assert tokenizer.encode_template(f"a{shielded}") == tokenizer.encode("a <|user|> ")


def test_a_vocabulary_without_bytes_is_refused(tmp_path: Path) -> None:
    hub = HubTokenizer(BPE({"a": 0}, []))
    hub.decoder = decoders.Metaspace()
    hub.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(VocabularyError, match=r"BPE and Metaspace; allowed: .*byte_fallback"):
        load_tokenizer(str(tmp_path))
