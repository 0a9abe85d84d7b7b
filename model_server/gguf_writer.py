"""GGUF files in llama.cpp's layout, made from other GGUF files and from folders.

Matrices of 8 or 4 bits get a float16 scale for each 32 inputs. With 4 bits, the embedding and the
head have 8: what they round is lost at every token. Tensors are read and written one after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from torch import Tensor

from model_server.gguf_vocabulary import Keys, vocabulary_of
from models.description import Description
from models.rope import Rope
from models.weights.folder import FolderSource
from models.weights.gguf import ARCHITECTURES, PERMUTED, ROPE_FREQUENCIES, GGUFSource, name_of
from models.weights.pieces import shapes_of
from models.weights.rounding import quantise_q4_0, quantise_q8_0
from models.weights.source import CHUNK_VALUES, WeightSource
from seams import LoadError

ROUND: dict[Kind, Callable[[Tensor], Tensor]] = {
    Kind.Q8_0: quantise_q8_0,
    Kind.Q4_0: quantise_q4_0,
    Kind.BF16: lambda rows: rows.bfloat16().view(torch.uint8),
}
_FILE_TYPES = {
    Kind.F32: gguf.LlamaFileType.ALL_F32,
    Kind.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    Kind.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    Kind.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
}
_VOCABULARY = ("token_embd.weight", "output.weight")
_POSITIONS = "position_embd.weight"  # GPT-2's, which llama.cpp adds in float32
_OF_THE_FILE = "GGUF."  # what gguf's reader calls keys that are none


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor to write: `read` gives rows as floating-point numbers."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[slice], Tensor]


def from_file(path: Path, out: Path, kind: Kind) -> None:
    """Raises LoadError, OSError."""
    GGUFSource(path)  # a file that cannot be served is refused
    reader = gguf.GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(out, architecture)
    for key, field in reader.fields.items():
        if key not in ("general.architecture", "general.file_type") and not key.startswith(
            _OF_THE_FILE
        ):
            of = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], of)

    def values(tensor: gguf.ReaderTensor) -> Values:
        def read(rows: slice) -> Tensor:
            return torch.tensor(gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type))

        return Values(tensor.name, tuple(tensor.shape.tolist())[::-1], read)

    write(writer, str(path), [values(tensor) for tensor in reader.tensors], kind, {})


def from_folder(folder: Path, out: Path, kind: Kind) -> None:
    """Raises LoadError, VocabularyError, OSError."""
    source = FolderSource(folder)
    if not isinstance(source.config, Description):
        raise LoadError(f"{folder}: GPT-2 is not written as GGUF; allowed for it: int8")
    from_source(source, out, kind, vocabulary_of(folder, source.config.vocab_size))
    if GGUFSource(out).config != _as_a_file_says(source.config):
        out.unlink()
        raise LoadError(f"{folder}: a GGUF file cannot say what its config.json says")


def from_source(source: WeightSource, out: Path, kind: Kind, vocabulary: Keys) -> None:
    """A decoder's weights, and of its description what such a file can say. Raises
    LoadError, OSError."""
    config = source.config
    assert isinstance(config, Description)
    expected = _as_a_file_says(config)
    family = next(a for a, model_type in ARCHITECTURES.items() if model_type == expected.family)
    writer = gguf.GGUFWriter(out, family)
    _describe(writer, expected)
    tensors = []
    divisors = next((r.divisors for r in expected.ropes if r and r.divisors), None)
    if divisors is not None:
        written = torch.tensor(divisors)
        tensors.append(Values(ROPE_FREQUENCIES, (len(divisors),), lambda rows: written[rows]))

    def values(piece: str, shape: tuple[int, ...]) -> Values:
        order: NDArray[np.int64] | None = None
        if expected.family in PERMUTED and piece.split(".")[-2] in ("q", "k"):
            halves = np.arange(shape[0]).reshape(-1, 2, config.head_dim // 2)
            order = halves.swapaxes(1, 2).ravel()

        def read(rows: slice) -> Tensor:
            if order is None:
                return source.values(piece, rows, slice(None)).float()
            return source.values(piece, slice(None), slice(None)).float()[order[rows]]

        return Values(name_of(piece), shape, read)

    tensors += [values(piece, shape) for piece, shape in shapes_of(config).items()]
    write(writer, source.place, tensors, kind, vocabulary)


def write(
    writer: gguf.GGUFWriter, place: str, tensors: list[Values], kind: Kind, vocabulary: Keys
) -> None:
    """`place` names the weights in errors. Raises LoadError, OSError."""
    writer.add_file_type(_FILE_TYPES[kind])
    for key, (value, typed, each) in vocabulary.items():
        writer.add_key_value(key, value, typed, each)
    kinds = [_kind_of(tensor, kind) for tensor in tensors]
    for tensor, of in zip(tensors, kinds, strict=True):
        block, size = gguf.GGML_QUANT_SIZES[of]
        width = tensor.shape[-1] // block * size
        stored = (*tensor.shape[:-1], width) if of in ROUND else tensor.shape
        dtype = np.dtype(np.uint8 if of in ROUND else np.float32)
        values = int(np.prod(tensor.shape))
        writer.add_tensor_info(tensor.name, stored, dtype, values // block * size, of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, of in zip(tensors, kinds, strict=True):
        data = [_rounded(rows, of, f"{place}: tensor '{tensor.name}'") for rows in _chunks(tensor)]
        writer.write_tensor_data(np.concatenate(data))
    writer.close()


def _kind_of(tensor: Values, kind: Kind) -> Kind:
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if len(tensor.shape) != 2 or tensor.shape[1] % block or tensor.name == _POSITIONS:
        return Kind.F32
    return Kind.Q8_0 if tensor.name in _VOCABULARY and kind == Kind.Q4_0 else kind


def _chunks(tensor: Values) -> Iterator[Tensor]:
    width = tensor.shape[1] if len(tensor.shape) > 1 else 1
    step = max(1, CHUNK_VALUES // width)
    for row in range(0, tensor.shape[0], step):
        yield tensor.read(slice(row, min(tensor.shape[0], row + step)))


def _rounded(rows: Tensor, kind: Kind, what: str) -> NDArray[Any]:
    if not rows.isfinite().all():
        raise LoadError(f"{what} has weights that are not finite")
    return np.asarray(ROUND[kind](rows) if kind in ROUND else rows.float())


def _describe(writer: gguf.GGUFWriter, of: Description) -> None:
    rope = next(rope for rope in reversed(of.ropes) if rope is not None)
    writer.add_vocab_size(of.vocab_size)
    writer.add_embedding_length(of.n_embd)
    writer.add_block_count(of.n_layer)
    writer.add_feed_forward_length(of.mlp_width)
    writer.add_head_count(of.n_head)
    writer.add_head_count_kv(of.kv_heads)
    writer.add_key_length(of.head_dim)
    writer.add_value_length(of.head_dim)
    writer.add_rope_dimension_count(of.head_dim)
    writer.add_layer_norm_rms_eps(of.norm_eps)
    full = next((r for r, w in zip(of.ropes, of.windows, strict=True) if r and not w), rope)
    writer.add_rope_freq_base(full.base)
    # readers multiply it by the factor of linear scaling, but Gemma's
    stretched = full.scaling == "linear" and not of.norms_after
    writer.add_context_length(full.original if stretched else of.context)
    window = next((window for window in of.windows if window is not None), None)
    if window is not None:
        writer.add_sliding_window(window)
    if full.scaling != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(full.scaling))
        writer.add_rope_scaling_factor(full.factor)
    if full.scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(full.original)


def _as_a_file_says(config: Description) -> Description:
    """The same network: numbers are float32 there, Llama 3's scaling is divisors, and Mistral
    without a window is a Llama."""
    family = config.family
    if family == "mistral" and not any(config.windows):
        family = "llama"

    def written(rope: Rope | None) -> Rope | None:
        if rope is None:
            return None
        base = float(np.float32(rope.base))
        if rope.scaling == "dynamic":
            return Rope(base, original=config.context)
        if rope.scaling == "llama3":
            divisors = Rope(base).frequencies(config.head_dim) / rope.frequencies(config.head_dim)
            return Rope(base, original=config.context, divisors=tuple(divisors.tolist()))
        return replace(rope, base=base, factor=float(np.float32(rope.factor)))

    return replace(
        config,
        family=family,
        norm_eps=float(np.float32(config.norm_eps)),
        ropes=tuple(map(written, config.ropes)),
    )
