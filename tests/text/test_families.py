"""SentencePiece's vocabularies in folders: those of Llama 2 (every text has a space before it),
Mistral (the first text has one) and Gemma (none has), against the library that reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as HubTokenizer

from tests.models.tokenizer_files import TOKENIZERS
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer


@pytest.fixture(params=["llama 2", "mistral 3", "gemma"])
def hub(request: pytest.FixtureRequest) -> HubTokenizer:
    """Without Gemma's runs of blanks, which are tokens before any flag is looked at."""
    fields = TOKENIZERS[request.param]()
    fields["added_tokens"] = [added for added in fields["added_tokens"] if added["special"]]
    return HubTokenizer.from_str(json.dumps(fields))


def loaded(hub: HubTokenizer, folder: Path, **config: object) -> Tokenizer:
    hub.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps(config))
    return load_tokenizer(str(folder))


def test_an_end_that_is_no_special_token_of_its_file_is_one_here(
    hub: HubTokenizer, tmp_path: Path
) -> None:
    hub.add_tokens([AddedToken("<end>", special=False)])
    end = hub.token_to_id("<end>")
    assert end is not None
    tokenizer = loaded(hub, tmp_path, eos_token_id=end)
    assert end not in tokenizer.encode("a<end>b")
    assert tokenizer.encode_template("a<end>").count(end) == 1


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_tokens_of_a_template_take_the_blanks_that_their_flags_name(
    hub: HubTokenizer, flag: str, tmp_path: Path
) -> None:
    """As Phi-3's and masks do."""
    flags = {flag: True, "normalized": False}
    hub.add_special_tokens([AddedToken("<|user|>", **flags), "<|end|>"])
    hub.add_tokens([AddedToken("<mask>", **flags)])
    tokenizer = loaded(hub, tmp_path)
    for text in (
        "a \n <|user|> \n b <mask> <|end|> c", "<|user|>  <|user|>", "x<|user|> <|user|>y <|user|>",
        "<|end|> <|user|> <|end|>", " <|user|> ", "_<mask>  <mask>é", "a<|user|>b<|end|>",
    ):  # fmt: skip
        expected = hub.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_template(text) == expected
    shielded = tokenizer.shield(" <|user|> ")
    assert tokenizer.encode_template(f"a{shielded}") == tokenizer.encode("a <|user|> ")
