"""Weights in a folder in the Hugging Face layout: `config.json` beside `model.safetensors`, or
files listed in `model.safetensors.index.json`. Linear layers may be int8 (`config.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.gpt2 import GPTConfig
from models.networks import Config
from models.weights.config import DescriptionError, check_scheme, describe
from models.weights.source import Raw, Shape, WeightSource, is_linear, is_norm, shapes_of
from seams import LoadError

MAPPED_BYTES = 1 << 28  # read of a file until it is opened again: pages that were read stay mapped

# Our layer -> Hugging Face's. GPT-2's are Conv1D, so matrices are transposed, and one tensor has
# the columns of queries, keys and values.
GPT2_NAMES = {
    "ln_1": "ln_1", "attn_proj": "attn.c_proj", "ln_2": "ln_2", "fc": "mlp.c_fc",
    "mlp_proj": "mlp.c_proj", "q": "attn.c_attn", "k": "attn.c_attn", "v": "attn.c_attn",
}  # fmt: skip
_DECODER_NAMES = {
    "wte": "embed_tokens", "ln_f": "norm", "head": "lm_head",
    "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm",
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm", "attn_proj": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "mlp_proj": "mlp.down_proj",
}  # fmt: skip
_WITH_NORMS_AFTER = {
    "attn_norm": "post_attention_layernorm", "ln_2": "pre_feedforward_layernorm",
    "mlp_norm": "post_feedforward_layernorm",
}  # fmt: skip
_PREFIXES = ("transformer.", "model.")  # which some exports omit


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a piece lies: a tensor, and which of the parts of its outputs is meant."""

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1
    added: float = 0.0  # to the values


class FolderSource(WeightSource):
    """Raises LoadError."""

    def __init__(self, folder: Path) -> None:
        self.place, self._folder = str(folder), folder
        self.fields = _read_fields(folder)  # of its config.json
        try:
            self.config = describe(self.fields)
            self.is_int8 = self.fields.get("quantization_config") is not None
            if self.is_int8:
                check_scheme(self.fields["quantization_config"])
        except DescriptionError as error:
            raise LoadError(f"{folder / 'config.json'}: {error}") from None
        self._files = _files_of(folder)
        self._shapes = shapes_of(self.config)
        self._handles: dict[Path, Any] = {}
        self._read_bytes = 0

    def tensors(self) -> Iterator[tuple[str, Tensor, Stored | None]]:
        """All that are stored, by their names in the files, and of the matrices of linear layers
        how they lie."""
        places = [tensor_of(piece, self.config) for piece in self._shapes if is_linear(piece)]
        linear = {place.name: place for place in places}
        for name, (_, full) in self._files.items():
            yield full, self._named(name)[:], linear.get(name)

    def shape(self, piece: str) -> Shape | None:
        where = tensor_of(piece, self.config)
        found = self._named(where.name)
        if found is None:
            return None
        whole = (where.parts * self._shapes[piece][0], *self._shapes[piece][1:])
        self._require_shape(where.name, found, whole[::-1] if where.transposed else whole)
        is_int8 = self.is_int8 and is_linear(piece)
        if (found.get_dtype() == "I8") != is_int8:
            raise LoadError(
                f"{self.place}: tensor '{where.name}' is {found.get_dtype()}, config.json "
                f"implies {'I8' if is_int8 else 'a floating-point type'}"
            )
        if is_int8:
            name = f"{where.name}_scale"
            if (scale := self._named(name)) is None:
                raise LoadError(
                    f"{self.place}: tensors are missing: {name}, which config.json implies"
                )
            self._require_shape(name, scale, (whole[0], 1))
        return self._shapes[piece]

    def _require_shape(self, name: str, found: Any, implied: Shape) -> None:
        shape = tuple(found.get_shape())
        if shape != implied:
            raise LoadError(
                f"{self.place}: tensor '{name}' has shape {shape}, config.json implies {implied}"
            )

    def storage(self, piece: str) -> str:
        if self.is_int8 and is_linear(piece):
            return "int8"
        return str(self._named(tensor_of(piece, self.config).name).get_dtype())

    def values(self, piece: str, rows: slice, columns: slice) -> Tensor:
        where = tensor_of(piece, self.config)
        found = self._slice(piece, where, rows, columns)
        if self.is_int8 and is_linear(piece):
            return found.float() * self._scale(piece, where, rows)[:, None]
        return found.float() + where.added if where.added else found

    def raw(self, piece: str, rows: slice, columns: slice) -> Raw | None:
        where = tensor_of(piece, self.config)
        data = self._slice(piece, where, rows, columns)
        return Raw("int8", data.contiguous(), self._scale(piece, where, rows))

    def _slice(self, piece: str, where: Stored, rows: slice, columns: slice) -> Tensor:
        rows, tensor = self._stored_rows(piece, where, rows), self._named(where.name)
        if len(self._shapes[piece]) == 1:
            found: Tensor = tensor[rows]
        else:
            found = tensor[columns, rows].t() if where.transposed else tensor[rows, columns]
        self._read_bytes += found.nbytes
        return found

    def _scale(self, piece: str, where: Stored, rows: slice) -> Tensor:
        stored = self._named(f"{where.name}_scale")
        scale: Tensor = stored[self._stored_rows(piece, where, rows)]
        return scale.float().flatten()

    def _stored_rows(self, piece: str, where: Stored, rows: slice) -> slice:
        outputs = self._shapes[piece][0]
        start, stop, _ = rows.indices(outputs)
        return slice(where.part * outputs + start, where.part * outputs + stop)

    def _named(self, name: str) -> Any:
        """A tensor of which what is asked for is read; None: there is none."""
        if name not in self._files:
            return None
        path, full = self._files[name]
        if self._read_bytes > MAPPED_BYTES:
            self._handles.clear()
            self._read_bytes = 0
        if path not in self._handles:
            self._handles[path] = _opened(path)
        return self._handles[path].get_slice(full)


def tensor_of(piece: str, config: Config) -> Stored:
    """Where a piece lies. Prefixes, which some exports omit, are no part of the name."""
    layer, _, kind = piece.rpartition(".")
    block, _, own = layer.rpartition(".")
    if isinstance(config, GPTConfig):
        if not block:
            return Stored(piece)
        name = f"{block.replace('blocks', 'h')}.{GPT2_NAMES[own]}.{kind}"
        place = "qkv".find(own)  # of one tensor
        transposed = not own.startswith("ln_") and kind == "weight"
        return Stored(name, transposed, max(place, 0), 1 if place < 0 else 3)
    names = _DECODER_NAMES | (_WITH_NORMS_AFTER if config.norms_after else {})
    holder = f"{block.replace('blocks', 'layers')}." if block else ""
    # Gemma's norms multiply by one more than what is stored
    added = 1.0 if is_norm(own) and config.family == "gemma3_text" else 0.0
    return Stored(f"{holder}{names[own]}.{kind}", added=added)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise _unreadable(path.parent, error) from error


def _unreadable(folder: Path, error: Exception) -> LoadError:
    return LoadError(
        f"{folder}: no readable model.safetensors or model.safetensors.index.json: {error}"
    )


def _files_of(folder: Path) -> dict[str, tuple[Path, str]]:
    """Tensor, without its prefix -> its file and its name there. Raises LoadError."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    try:
        files = [single]
        if not single.exists():
            names = json.loads(index.read_text())["weight_map"].values()
            files = [folder / name for name in sorted(set(names))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(folder, error) from error
    found = {}
    for file in files:
        for name in _opened(file).keys():  # noqa: SIM118 - the handle is no mapping
            prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
            found[name.removeprefix(prefix)] = file, name
    return found


def _read_fields(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
