"""`./server.sh model-server quantize`: a checkpoint with int8 weights, or a GGUF file with
weights of 8 or 4 bits, made from another one.

Results with int8 equal those of `--dtype int8` with the original to the last bit: both round
weights in the same way."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from models.fetch import locate
from models.names import RANDOM_PREFIX
from models.weights.config import SCHEME
from models.weights.folder import FolderSource
from models.weights.loader import check
from models.weights.source import quantise_int8
from seams import LoadError
from text.chat import TEMPLATE_FILE, TOOL_FILE
from text.vocabulary import MAP_FILE, SETTINGS_FILE

# what a server reads besides the weights
BESIDE = (
    "vocab.tiktoken",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    SETTINGS_FILE,
    MAP_FILE,
    "generation_config.json",
    TEMPLATE_FILE,
    TOOL_FILE,
)


@dataclass(frozen=True, slots=True)
class Quantised:
    model: Path  # as --model takes it
    bytes_before: int  # of the weights
    bytes: int


def quantise(
    model: str, out: Path, revision: str | None = None, weights: str = "int8"
) -> Quantised:
    """Writes the checkpoint `model`, at a revision, to `out`, a new or empty folder, with weights
    of a type: int8, q8_0 or q4_0. Raises LoadError, VocabularyError."""
    if model.startswith(RANDOM_PREFIX):
        raise LoadError(
            f"model '{model}' has no checkpoint; --dtype int8 quantises it when it is loaded"
        )
    found = locate(model, revision)
    if weights == "int8" and found.is_file():
        raise LoadError(
            f"{found} is a GGUF file; allowed for it: --weights q8_0 or q4_0, and for int8 a folder"
        )
    source = FolderSource(found) if found.is_dir() else None
    if source is not None and source.is_int8:
        raise LoadError(f"{found}: its weights are int8 already")
    try:
        if out.exists() and any(out.iterdir()):
            raise LoadError(f"{out} is not empty; allowed: a new or an empty folder")
        if source is not None:
            check(source)  # a checkpoint that cannot be served is refused
            if weights == "int8":
                return _as_int8(source, found, out)
        return _as_gguf(found, out, weights)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"{out} cannot be written: {error}") from error


def _as_int8(source: FolderSource, folder: Path, out: Path) -> Quantised:
    tensors, weights = dict[str, Tensor](), out / "model.safetensors"
    for name, tensor, linear in source.tensors():
        if linear is not None:
            if not tensor.isfinite().all():
                raise LoadError(f"{folder}: tensor '{name}' has weights that are not finite")
            weight = (tensor.t() if linear.transposed else tensor).float()
            rounded, scale = quantise_int8(weight, weight.abs().amax(1))
            tensor = rounded.t() if linear.transposed else rounded
            tensors[f"{name}_scale"] = scale[:, None]
        tensors[name] = tensor.contiguous()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors writes files that only their owner may read
    for name in BESIDE:
        if (folder / name).exists():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    fields = source.fields | {"quantization_config": SCHEME}
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")  # written last
    return Quantised(out, _bytes_of(folder), weights.stat().st_size)


def _as_gguf(found: Path, out: Path, weights: str) -> Quantised:
    # imported here: int8 does not need it
    from gguf import GGMLQuantizationType

    from model_server.gguf_writer import from_file, from_folder

    made = out.is_dir()
    out.mkdir(parents=True, exist_ok=True)
    partial, file = out / ".partial", out / "model.gguf"
    try:
        write = from_folder if found.is_dir() else from_file
        write(found, partial, GGMLQuantizationType[weights.upper()])
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)
        if not made and not file.exists():
            out.rmdir()
    return Quantised(file, _bytes_of(found), file.stat().st_size)


def _bytes_of(found: Path) -> int:
    files = [found] if found.is_file() else found.glob("*.safetensors")
    return sum(path.stat().st_size for path in files)
