"""`./server.sh model-server quantize`: a checkpoint with int8 weights, made from another one.

Its results equal those of `--dtype int8` with the original to the last bit: both round weights in
the same way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from models.weights.checkpoint import find_files
from models.weights.folder import FolderSource, has_int8, linear_names, read_fields, read_tensors
from models.weights.loader import check
from models.weights.scheme import SCHEME
from models.weights.source import CheckpointError
from runtime.linear.layers import quantised
from seams import RANDOM_PREFIX

# what a server reads besides the weights
BESIDE = (
    "vocab.tiktoken",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


def quantise(model: str, out: Path, revision: str | None = None) -> tuple[int, int]:
    """Writes the checkpoint `model`, at a revision, to `out`, a new or empty folder.
    Returns the bytes of the weights before and after. Raises CheckpointError."""
    if model.startswith(RANDOM_PREFIX):
        raise CheckpointError(
            f"model '{model}' has no checkpoint; --dtype int8 quantises it when it is loaded"
        )
    folder = find_files(model, revision)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a GGUF file; allowed: a folder with a checkpoint")
    if has_int8(folder):
        raise CheckpointError(f"{folder}: its weights are int8 already")
    try:
        if out.exists() and any(out.iterdir()):
            raise CheckpointError(f"{out} is not empty; allowed: a new or an empty folder")
        check(FolderSource(folder))  # a checkpoint that cannot be served is refused
        tensors, weights = _quantised(folder), out / "model.safetensors"
        out.mkdir(parents=True, exist_ok=True)
        save_file(tensors, weights, metadata={"format": "pt"})
        weights.chmod(0o644)  # safetensors writes files that only their owner may read
        for name in BESIDE:
            if (folder / name).exists():
                shutil.copyfile(folder / name, out / name)
        fields = read_fields(folder) | {"quantization_config": SCHEME}
        (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")  # written last
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{out} cannot be written: {error}") from error
    before = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return before, weights.stat().st_size


def _quantised(folder: Path) -> dict[str, Tensor]:
    linear, tensors = linear_names(folder), dict[str, Tensor]()
    for name, source in read_tensors(folder):
        tensor: Tensor = source[:]
        if name in linear:
            if not tensor.isfinite().all():
                raise CheckpointError(f"{folder}: tensor '{name}' has weights that are not finite")
            rounded, scale = quantised(tensor.t() if linear[name] else tensor)
            tensor = rounded.t() if linear[name] else rounded
            tensors[f"{name}_scale"] = scale[:, None]
        tensors[name] = tensor.contiguous()
    return tensors
