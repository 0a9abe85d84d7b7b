"""`model-server quantize`: its int8 checkpoint is served as `--dtype int8` serves the original, and
its GGUF files compute what the gguf package rounds to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from model import LoadOptions, load_model
from model_server.__main__ import main
from model_server.quantise import from_file, quantise
from models.weights import loader
from models.weights.folder import FolderSource
from models.weights.gguf import GGUFSource
from seams import Sampling
from tests.model_server.test_shards import generate
from tests.models.families import FAMILIES, VOCAB, write
from tests.models.test_gguf import WRITTEN, written
from tests.support.process import ROOT
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer

BESIDE = (
    "tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json",
    "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)  # fmt: skip
CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def test_logits_are_those_of_quantising_at_load_to_the_last_bit_and_all_else_is_copied(
    tmp_path: Path,
) -> None:
    original, out = tmp_path / "original", tmp_path / "out"
    (original / "additional_chat_templates").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "vocab.tiktoken"):
        (original / name).symlink_to(ROOT / "models" / "embedded" / name)
    main(["quantize", str(original), str(out)])
    stored, at_load = (
        load_model(LoadOptions("dynamic", str(path), "cpu", dtype, 0, 8))
        for path, dtype in ((out, "auto"), (original, "int8"))
    )
    assert stored.info.dtype == at_load.info.dtype == "int8"
    assert stored.info.kernels == at_load.info.kernels
    sampling = Sampling(3, 0.8, top_p=0.9, logprobs=50)
    assert generate(stored, sampling) == generate(at_load, sampling)
    for name in BESIDE:
        (original / name).write_text(name)
    quantise(str(original), tmp_path / "again")
    assert [(tmp_path / "again" / name).read_text() for name in BESIDE] == list(BESIDE)


def with_vocabulary(folder: Path) -> None:
    """Byte-level BPE of all but seven of the model's tokens. One of its bytes is an added token, as
    in Falcon3, and the last tokens have no row in the network."""
    hub = Tokenizer(models.BPE())
    hub.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    hub.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 10, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    hub.train_from_iterator(["the cat sat on the mat, and the dog ran over the hill"] * 9, trainer)
    hub.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    hub.add_tokens([AddedToken("Ċ"), AddedToken("<word>", normalized=False)])
    hub.add_special_tokens([f"<image{n}>" for n in range(9)])
    hub.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    end = hub.token_to_id("<|im_end|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))


def same_network(source: Path, made: Path, kind: Kind) -> None:
    """Of the networks in float32; embedding and head have 8 bits."""
    original: Any = loader.load(GGUFSource(source) if source.is_file() else FolderSource(source))
    own = dict(loader.load(GGUFSource(made)).named_parameters())
    for name, parameter in original.named_parameters():
        if parameter.dim() < 2:
            assert torch.equal(own[name], parameter), name
        else:
            of = Kind.Q8_0 if name in ("wte.weight", "head.weight") else kind
            values = gguf.quants.quantize(parameter.float().numpy(), of)
            rounded = torch.from_numpy(gguf.quants.dequantize(values, of))
            assert torch.allclose(own[name], rounded, atol=1e-6), name


def same_texts(folder: Path, made: Path) -> None:
    own, other = load_tokenizer(str(made)), load_tokenizer(str(folder))
    text = "the cat's 1234 mats\n\n  <|im_end|> ünï <word><image8>"
    assert own.encode(text) == other.encode(text)
    assert own.spellings[: other.vocab_size] == other.spellings
    assert other.vocab_size <= VOCAB
    assert (own.end_ids, own.bos_id) == (other.end_ids, other.bos_id)
    messages = [{"role": "user", "content": "the hill <|im_end|>"}]
    templates = (load_chat_template(str(p), t) for p, t in ((made, own), (folder, other)))
    of_file, of_folder = (template.encode(messages) for template in templates)
    assert of_file == of_folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, Kind.Q8_0) for name in ("llama-linear", "llama-yarn", "llama-dynamic")),
        *((name, Kind.Q8_0) for name in ("mistral", "smollm3", "qwen3", "gemma3")),
        ("llama", Kind.Q4_0),
    ],
)
def test_a_folder_becomes_a_file_that_says_the_same(name: str, kind: Kind, tmp_path: Path) -> None:
    write({**FAMILIES, **WRITTEN}[name](), tmp_path)
    with_vocabulary(tmp_path)
    made = quantise(str(tmp_path), tmp_path / "out", weights=kind.name.lower())
    same_network(tmp_path, made.model, kind)
    same_texts(tmp_path, made.model)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_file_becomes_another_with_the_same_metadata(kind: str, tmp_path: Path) -> None:
    source, _ = written(FAMILIES["llama"](), tmp_path, Kind.Q5_1)
    from_file(source, tmp_path / "out.gguf", Kind[kind])
    same_network(source, tmp_path / "out.gguf", Kind[kind])
    before, after = (
        {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
        for path in (source, tmp_path / "out.gguf")
    )
    before["general.file_type"] = {"Q8_0": 7, "Q4_0": 2}[kind]
    assert after.pop("GGUF.kv_count") == before.pop("GGUF.kv_count") + 1
    assert after == before


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, bare, broken = (tmp_path / name for name in ("out", "bare", "broken"))
    write(FAMILIES["llama"](), bare)
    broken.mkdir()
    (broken / "config.json").write_text((ROOT / "models" / "embedded" / "config.json").read_text())
    tensors = load_file(ROOT / "models" / "embedded" / "model.safetensors")
    tensors["transformer.h.3.mlp.c_fc.weight"][2, 5] = torch.nan
    save_file(tensors, broken / "model.safetensors")
    for model, to, weights, says in (
        ("embedded", bare, "int8", "is not empty"),
        (broken, out, "int8", "c_fc.weight' has weights that are not finite"),
        (bare, out, "q8_0", "no vocabulary"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["quantize", str(model), str(to), "--weights", weights])
        assert says in f"{ended.value.code} {capsys.readouterr().err}"
    assert not out.exists()
