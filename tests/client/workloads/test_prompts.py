"""Prompts of words have the lengths asked for in the vocabulary served; some begin alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from api.tgi.tokens import pieces_of
from client.workloads.prompts import Words, embedded_words
from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from models.embedded.vocabulary import load_embedded_encoding
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

Spans = dict[tuple[int, int], int]


def told(tokenizer: Tokenizer) -> Spans:
    """What a server answers to the question."""
    ids = tokenizer.encode_prompt(embedded_words().question())
    pieces = pieces_of(ids, list(tokenizer.prompt_bytes(ids)))
    return {(piece["start"], piece["stop"]): piece["id"] for piece in pieces}


def other_tokenizer(folder: Path, kind: str, *, begins: bool) -> Tokenizer:
    """Of a vocabulary learnt from some of the words. `begins`: a prompt begins with <s>."""
    if kind == "byte-level":
        hub = HubTokenizer(models.BPE())
        hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        hub.decoder = decoders.ByteLevel()
        learnt = pre_tokenizers.ByteLevel.alphabet()
        special = ["<s>"]
    else:  # SentencePiece's
        hub = HubTokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        hub.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
        hub.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        learnt, special = ["\n"], ["<unk>", "<s>"]
    words = embedded_words()
    texts = [*words.starts[::3], *words.further[::2], "the", "of the"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=special, initial_alphabet=learnt, show_progress=False
    )
    hub.train_from_iterator(texts, trainer)
    if begins:
        first = [("<s>", hub.token_to_id("<s>"))]
        hub.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=first)
    folder.mkdir()
    hub.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<s>"}))
    return load_tokenizer(str(folder))


@pytest.mark.parametrize("kind", ["byte-level", "first", "always", "never"])
@pytest.mark.parametrize("begins", [False, True])
def test_prompts_have_their_lengths_in_the_served_vocabulary(
    tmp_path: Path, kind: str, begins: bool
) -> None:
    tokenizer = other_tokenizer(tmp_path / "model", kind, begins=begins)
    words = embedded_words().kept(told(tokenizer))
    assert words.before == begins
    assert 20 < len(words.starts) < len(embedded_words().starts)
    assert 20 < len(words.further) < len(embedded_words().further)
    for prompts in ("words", "shared:prefixes=2,tokens=9"):
        recipe = Recipe(requests=60, prompts=prompts, prompt_tokens="uniform:1,30")
        for request in make(recipe, words).requests:
            assert len(tokenizer.encode_prompt(request.prompt)) == request.prompt_tokens


def test_the_embedded_vocabulary_and_one_without_such_words_leave_them_as_they_are() -> None:
    words = embedded_words()
    for tokens in (told(load_tokenizer("embedded")), {}, {(0, 3): 5}):
        assert words.kept(tokens) is words


def test_other_words_make_another_workload_and_its_header_tells() -> None:
    words = embedded_words()
    ours = make(Recipe(requests=5))
    theirs = make(Recipe(requests=5), Words(words.starts[:50], words.further[:50], 0, "0" * 64))
    told = [made.generator["vocabulary_sha256"] for made in (ours, theirs)]
    assert told == [words.sha256, "0" * 64]
    assert ours.sha256 != theirs.sha256


RECIPE = Recipe(requests=12, rate=2.0, prompt_tokens="uniform:3,9", output_tokens="uniform:2,6")


def test_shared_prompts_begin_with_one_of_so_many_texts() -> None:
    workload = make(replace(RECIPE, requests=40, prompts="shared:prefixes=3,tokens=20"))
    encoding = load_embedded_encoding()
    tokens = [encoding.encode_ordinary(r.prompt) for r in workload.requests]
    assert [len(t) for t in tokens] == [r.prompt_tokens for r in workload.requests]
    assert len({tuple(t[:20]) for t in tokens}) == 3
    assert len({tuple(t) for t in tokens}) == 40


def test_blocks_with_one_id_are_one_text_in_a_trace_that_names_them(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1030, "output_length": 2, "hash_ids": [7, 8, 9]},
        {"timestamp": 1000, "input_length": 1100, "output_length": 2, "hash_ids": [7, 8, 10]},
        {"timestamp": 2000, "input_length": 600, "output_length": 2, "hash_ids": [7, 11]},
        {"timestamp": 3000, "input_length": 600, "output_length": 2, "hash_ids": [12, 11]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = Recipe(requests=None, rate=None, arrivals=f"trace:mooncake,path={path}")
    encoding = load_embedded_encoding()
    a, b, c, d = (encoding.encode_ordinary(r.prompt) for r in make(recipe).requests)
    assert [len(p) for p in (a, b, c, d)] == [1030, 1100, 600, 600]
    assert a[:1024] == b[:1024]
    assert a[:512] == c[:512]
    assert c[512:] == d[512:]
    assert all(x != y for x, y in ((a[1024:1030], b[1024:1030]), (a[512:600], c[512:]), (c, d)))


@pytest.mark.parametrize(
    ("prompts", "words"),
    [("shared:prefixes=0", "greater than or equal to 1"), ("essay", "words, request, shared")],
)
def test_a_kind_that_cannot_be_is_refused(prompts: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make(replace(RECIPE, prompts=prompts))
