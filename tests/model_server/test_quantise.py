"""`model-server quantize`: its int8 checkpoint is served as `--dtype int8` serves the original, and
its GGUF files compute what the gguf package rounds to."""

from __future__ import annotations

import json
import subprocess
import sys
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
from tests.model_server.served import connected, unix
from tests.model_server.test_shards import generate
from tests.models.families import FAMILIES, VOCAB, write
from tests.models.test_gguf import WRITTEN, written
from tests.support.process import ROOT, environment, serving
from text.chat import load_chat_template
from text.vocabulary import load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8")
    made = quantise("embedded", out)
    assert made.bytes < 0.65 * made.bytes_before, "its weights were of 16 bits"
    return out


def load(model: str, dtype: str) -> Executor:
    return load_model(LoadOptions("dynamic", model, "cpu", dtype, 0, 8))


SAMPLED = Sampling(3, 0.8, top_p=0.9, logprobs=50)


def test_the_logits_are_those_of_quantising_at_load_to_the_last_bit(folder: Path) -> None:
    stored, at_load = load(str(folder), "auto"), load("embedded", "int8")
    assert stored.info.dtype == at_load.info.dtype == "int8"
    assert stored.info.kernels == at_load.info.kernels
    assert stored.info.parameters == at_load.info.parameters
    assert stored.shape == at_load.shape
    assert generate(stored, SAMPLED) == generate(at_load, SAMPLED)


def test_an_asked_precision_is_kept(folder: Path) -> None:
    """The weights are the rounded ones, and nothing else is."""
    model = load(str(folder), "float32")
    assert model.info.dtype == "float32"
    assert model.shape.dtype == torch.float32


@pytest.mark.long
def test_shards_of_it_compute_what_shards_quantised_at_load_do(
    folder: Path, tmp_path: Path
) -> None:
    answers = []
    for number, (model, dtype) in enumerate([(str(folder), "auto"), ("embedded", "int8")]):
        address = unix(tmp_path, f"model-{number}")
        arguments = ["serve", model, "--dtype", dtype, "--shards", "2", "--listen", address]
        process = subprocess.Popen(
            [sys.executable, "-m", "model_server", *arguments], cwd=ROOT, env=environment()
        )
        try:
            with connected(address, model=model, max_batch_size=8) as remote:
                assert remote.info.dtype == "int8"
                answers.append(generate(remote, SAMPLED))
        finally:
            process.terminate()
            process.wait()
    assert answers[0] == answers[1]


def test_the_command_says_what_was_saved(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["quantize", "embedded", str(tmp_path / "out")])
    assert "7.4 MB of weights instead of 12.1 MB" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.tiktoken"}
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o044 == 0o044


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


def test_what_cannot_be_quantised_is_refused_and_leaves_no_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, broken = str(tmp_path / "out"), tmp_path / "broken"
    assert "OUTPUT_DIR" in refused(capsys, "embedded")
    assert "neither a folder nor a known name" in refused(capsys, "./no-such-model", out)
    assert "no checkpoint; --dtype int8 quantises it" in refused(capsys, "random:gpt2", out)
    assert "int8 already" in refused(capsys, str(folder), out)
    assert "is not empty; allowed: a new or an empty" in refused(capsys, "embedded", str(folder))
    assert "cannot be written" in refused(capsys, "embedded", str(folder / "config.json"))
    assert "--revision is 'v2'" in refused(capsys, "embedded", out, "--revision", "v2")

    broken.mkdir()
    fields = json.loads((ROOT / "embedded" / "config.json").read_text())
    tensors = load_file(ROOT / "embedded" / "model.safetensors")
    tensors["transformer.h.3.mlp.c_fc.weight"][2, 5] = torch.nan
    save_file(tensors, broken / "model.safetensors")
    (broken / "config.json").write_text(json.dumps(fields))
    assert "c_fc.weight' has weights that are not finite" in refused(capsys, str(broken), out)
    (broken / "config.json").write_text(json.dumps({**fields, "model_type": "bloom"}))
    assert "model_type is 'bloom', supported: gpt2, llama" in refused(capsys, str(broken), out)
    (broken / "model.safetensors").write_bytes(b"no weights")
    (broken / "config.json").write_text(json.dumps(fields))
    assert "no readable model.safetensors" in refused(capsys, str(broken), out)
    assert not Path(out).exists()


def test_a_server_reads_from_the_folder_that_its_weights_are_int8(
    folder: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, app="app:create_app()", model=str(folder)) as server:
        model = server.stats()["model"]
        assert model["dtype"] == "int8"
        assert {kernel.split()[0] for kernel in model["kernels"].values()} == {"int8"}
        answers = [server.ask("import os", 12, temperature=0.8, seed=5).json() for _ in range(2)]
    assert answers[0]["completion"] == answers[1]["completion"]


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
        *((name, Kind.Q8_0) for name in ("llama", "mistral", "smollm3", "qwen3", "gemma3")),
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


def test_the_command_names_the_file_to_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of("llama", tmp_path)
    main(["quantize", str(folder), str(tmp_path / "out"), "--weights", "q4_0"])
    assert f"serve them with --model {tmp_path}/out/model.gguf" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.gguf"]


def test_a_decoders_folder_becomes_int8(tmp_path: Path) -> None:
    folder = folder_of("qwen3", tmp_path)
    quantise(str(folder), tmp_path / "out")
    own: Any = loader.load(FolderSource(tmp_path / "out"))
    original: Any = loader.load(FolderSource(folder))
    for name, parameter in original.named_parameters():
        error = (own.get_parameter(name) - parameter).abs().max()
        assert error <= parameter.abs().max() / 200, name


def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, source = str(tmp_path / "out"), tmp_path / "source"
    file, _ = written(FAMILIES["llama"](), tmp_path, Kind.F32)
    assert "allowed for it: --weights q8_0 or q4_0" in refused(capsys, str(file), out)
    assert "GPT-2 is not written" in refused(capsys, "embedded", out, "--weights", "q8_0")
    assert "int8, q8_0, q4_0" in refused(capsys, "embedded", out, "--weights", "q5_0")
    write(FAMILIES["llama"](), source)
    assert "no vocabulary" in refused(capsys, str(source), out, "--weights", "q8_0")
    with_vocabulary(source)
    fields = json.loads((source / "config.json").read_text())
    fields["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}
    for name in ("low_freq_factor", "high_freq_factor"):
        del fields["rope_parameters"][name]
    (source / "config.json").write_text(json.dumps(fields))
    said = refused(capsys, str(source), out, "--weights", "q8_0")
    assert "a GGUF file cannot say what its config.json says" in said
    assert not Path(out).exists()


def test_gemmas_windows_that_a_file_cannot_say_are_refused(tmp_path: Path) -> None:
    folder = folder_of("gemma3", tmp_path)
    fields = json.loads((folder / "config.json").read_text())
    fields["layer_types"] = ["sliding_attention"] * 7
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match="cannot say"):
        quantise(str(folder), tmp_path / "out", weights="q8_0")
