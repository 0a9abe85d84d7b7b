"""`model-server quantize`: its checkpoint is served as `--dtype int8` serves the original."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import LoadOptions, load_model
from model_server.__main__ import main
from model_server.quantise import quantise
from requested import Sampling
from runtime.executor import Executor
from tests.model_server.served import connected, unix
from tests.model_server.test_shards import generate
from tests.support.process import ROOT, environment, serving


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
