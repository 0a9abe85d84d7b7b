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
from model_server.gguf_writer import from_file
from model_server.quantise import quantise
from models.weights import loader
from models.weights.folder import FolderSource
from models.weights.gguf import GGUFSource
from models.weights.source import CheckpointError
from requested import Sampling
from runtime.executor import Executor
from tests.model_server.test_shards import generate
from tests.models.families import FAMILIES, VOCAB, write
from tests.models.test_gguf import WRITTEN, written
from tests.support.process import ROOT
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8")
    main(["quantize", "embedded", str(out)])
    return out


def load(model: str, dtype: str) -> Executor:
    return load_model(LoadOptions("dynamic", model, "cpu", dtype, 0, 8))


SAMPLED = Sampling(3, 0.8, top_p=0.9, logprobs=50)


def test_the_logits_are_those_of_quantising_at_load_to_the_last_bit(folder: Path) -> None:
    stored, at_load = load(str(folder), "auto"), load("embedded", "int8")
    assert stored.info.dtype == at_load.info.dtype == "int8"
    assert stored.info.kernels == at_load.info.kernels
    assert stored.shape == at_load.shape
    assert generate(stored, SAMPLED) == generate(at_load, SAMPLED)


def test_what_a_server_reads_beside_the_weights_is_copied(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    (model / "additional_chat_templates").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (model / name).symlink_to(ROOT / "embedded" / name)
    beside = (
        "tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json",
        "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    )  # fmt: skip
    for name in beside:
        (model / name).write_text(name)
    quantise(str(model), out)
    assert [(out / name).read_text() for name in beside] == list(beside)


def refused(capsys: pytest.CaptureFixture[str], *typed: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["quantize", *typed])
    assert ended.value.code != 0
    return f"{ended.value.code} {capsys.readouterr().err}"


CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


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


def folder_of(name: str, folder: Path) -> Path:
    write({**FAMILIES, **WRITTEN}[name](), folder)
    with_vocabulary(folder)
    return folder


def rounded(weights: torch.Tensor, kind: Kind) -> torch.Tensor:
    values = gguf.quants.quantize(weights.float().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(values, kind))


def same_network(source: Path, made: Path, kind: Kind) -> None:
    """Of the networks in float32; embedding and head have 8 bits."""
    original: Any = loader.load(GGUFSource(source) if source.is_file() else FolderSource(source))
    own = dict(loader.load(GGUFSource(made)).named_parameters())
    for name, parameter in original.named_parameters():
        if parameter.dim() < 2:
            assert torch.equal(own[name], parameter), name
        else:
            of = Kind.Q8_0 if name in ("wte.weight", "head.weight") else kind
            assert torch.allclose(own[name], rounded(parameter, of), atol=1e-6), name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, Kind.Q8_0) for name in ("llama-linear", "llama-yarn", "llama-dynamic")),
        *((name, Kind.Q8_0) for name in ("mistral", "smollm3", "qwen3", "gemma3")),
        ("llama", Kind.Q4_0),
    ],
)
def test_a_folder_becomes_a_file_that_says_the_same(name: str, kind: Kind, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    made = quantise(str(folder), tmp_path / "out", weights=kind.name.lower())
    same_network(folder, made.model, kind)
    assert made.bytes < made.bytes_before


def test_its_vocabulary_and_template_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of("qwen3", tmp_path)
    made = str(quantise(str(folder), tmp_path / "out", weights="q8_0").model)
    own, other = load_tokenizer(made), load_tokenizer(str(folder))
    text = "the cat's 1234 mats\n\n  <|im_end|> ünï <word><image8>"
    assert own.encode(text) == other.encode(text)
    assert own.spellings[: other.vocab_size] == other.spellings
    assert other.vocab_size <= VOCAB
    assert (own.end_ids, own.bos_id) == (other.end_ids, other.bos_id)
    messages = [{"role": "user", "content": "the hill <|im_end|>"}]
    conversations = [
        load_chat_template(path, tokenizer).encode(messages)
        for path, tokenizer in ((made, own), (str(folder), other))
    ]
    assert conversations[0] == conversations[1]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_file_becomes_another_with_the_same_metadata(kind: str, tmp_path: Path) -> None:
    source, _ = written(FAMILIES["llama"](), tmp_path, Kind.Q5_1)
    from_file(source, tmp_path / "out.gguf", Kind[kind])
    same_network(source, tmp_path / "out.gguf", Kind[kind])
    keys = [
        {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
        for path in (source, tmp_path / "out.gguf")
    ]
    added = keys[1].pop("general.file_type")
    assert added == {"Q8_0": 7, "Q4_0": 2}[kind]
    for of_file in keys:
        of_file.pop("GGUF.kv_count")
    assert keys[0] == keys[1]


def test_a_decoders_folder_becomes_int8(tmp_path: Path) -> None:
    folder = folder_of("qwen3", tmp_path)
    quantise(str(folder), tmp_path / "out")
    own: Any = loader.load(FolderSource(tmp_path / "out"))
    original: Any = loader.load(FolderSource(folder))
    for name, parameter in original.named_parameters():
        error = (own.get_parameter(name) - parameter).abs().max()
        assert error <= parameter.abs().max() / 200, name


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, source, broken = str(tmp_path / "out"), tmp_path / "source", tmp_path / "broken"
    file, _ = written(FAMILIES["llama"](), tmp_path, Kind.F32)
    write(FAMILIES["llama"](), source)
    broken.mkdir()
    (broken / "config.json").write_text((ROOT / "embedded" / "config.json").read_text())
    tensors = load_file(ROOT / "embedded" / "model.safetensors")
    tensors["transformer.h.3.mlp.c_fc.weight"][2, 5] = torch.nan
    save_file(tensors, broken / "model.safetensors")
    for words, says in (
        (["random:gpt2", out], "no checkpoint"),
        ([folder, out], "int8 already"),
        (["embedded", folder], "is not empty"),
        (["embedded", folder / "config.json"], "cannot be written"),
        ([broken, out], "c_fc.weight' has weights that are not finite"),
        ([file, out], "allowed for it: --weights q8_0 or q4_0"),
        (["embedded", out, "--weights", "q8_0"], "GPT-2 is not written"),
        ([source, out, "--weights", "q8_0"], "no vocabulary"),
    ):
        with pytest.raises(SystemExit, match="[^0]"):
            main(["quantize", *map(str, words)])
        assert says in capsys.readouterr().err
    with_vocabulary(source)
    fields = json.loads((source / "config.json").read_text())
    fields["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}
    for name in ("low_freq_factor", "high_freq_factor"):
        del fields["rope_parameters"][name]
    (source / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match="cannot say what"):
        quantise(str(source), Path(out), weights="q8_0")
    assert not Path(out).exists()
