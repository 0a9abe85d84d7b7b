"""Weights in a GGUF file, as llama.cpp's converter writes them (convert_hf_to_gguf.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.description import NO_ROPE_INTERVAL, Description
from models.weights.config import DescriptionError, describe_decoder
from models.weights.gguf_header import Header, TensorInfo, read_header
from models.weights.source import BLOCK, Raw, Shape, WeightSource, shapes_of
from seams import LoadError

# general.architecture -> model_type
ARCHITECTURES = {
    "llama": "llama", "mistral": "mistral", "smollm3": "smollm3", "qwen2": "qwen2",
    "qwen3": "qwen3", "gemma3": "gemma3_text",
}  # fmt: skip
# The rows of queries and keys lie as pairs of dimensions there, not as halves: `LlamaModel.permute`
# of the converter, from which Mistral and SmolLM3 inherit.
PERMUTED = {"llama", "mistral", "smollm3"}
# Llama 3's scaling is a tensor of divisors of the frequencies, not metadata (`LlamaModel` there).
ROPE_FREQUENCIES = "rope_freqs.weight"
# llama.cpp scales the queries of this one by the width over the heads (`llama_model::load_hparams`,
# Gemma 3 of 27 B), and those of the others by the heads' width.
GEMMA_27B_LAYERS = 62
# Gemma's norms contain the one already (`Gemma3Model.modify_tensors`), so nothing is added here;
# its pattern of windows and the base of their RoPE are not in the file, so the description's hold.

_NAMES = {
    "wte": "token_embd", "ln_f": "output_norm", "head": "output", "ln_1": "attn_norm",
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
    "attn_proj": "attn_output", "attn_norm": "post_attention_norm", "ln_2": "ffn_norm",
    "gate": "ffn_gate", "up": "ffn_up", "mlp_proj": "ffn_down", "mlp_norm": "post_ffw_norm",
}  # fmt: skip
_FIELDS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta",
    "attention.sliding_window": "sliding_window", "rope.freq_base_swa": "rope_local_base_freq",
}  # fmt: skip
_SCALING = {
    "rope.scaling.type": "rope_type", "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}  # fmt: skip
_CHECKED = {"attention.value_length", "rope.dimension_count", "vocab_size"}
_MEANINGLESS = {"rope.scaling.finetuned"}
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS = {"Q8_0": "q8_0", "Q4_0": "q4_0", "Q4_1": "q4_1"}  # that linear layers compute as stored


class GGUFSource(WeightSource):
    config: Description

    def __init__(self, path: Path) -> None:
        self.place, self._path = str(path), path
        try:
            self._header = read_header(path)
            self.config = _describe(self._header)
        except DescriptionError as error:
            raise LoadError(f"{path}: {error}") from None
        if ROPE_FREQUENCIES in self._header.tensors:
            divisors = tuple(self._floats(ROPE_FREQUENCIES).tolist())
            if len(divisors) != self.config.head_dim // 2:
                raise LoadError(f"{path}: '{ROPE_FREQUENCIES}' has {len(divisors)} numbers")
            ropes = [rope and replace(rope, divisors=divisors) for rope in self.config.ropes]
            self.config = replace(self.config, ropes=tuple(ropes))
        # a tensor that is not read would be computed with by others
        known = {name_of(piece) for piece in shapes_of(self.config)} | {ROPE_FREQUENCIES}
        if unknown := sorted(self._header.tensors.keys() - known):
            raise LoadError(f"{path}: tensors are not supported: {', '.join(unknown[:5])}")

    def shape(self, piece: str) -> Shape | None:
        found = self._header.tensors.get(name_of(piece))
        return None if found is None else found.shape

    def storage(self, piece: str) -> str:
        kind = self._header.tensors[name_of(piece)].kind
        return _BLOCKS.get(kind, kind)

    def values(self, piece: str, rows: slice, columns: slice) -> Tensor:
        info = self._header.tensors[name_of(piece)]
        if len(info.shape) == 1:
            return self._floats(name_of(piece))[rows]
        data = self._rows(piece, info, rows)
        if info.kind in _FLOATS:
            return torch.from_numpy(data).view(_FLOATS[info.kind])[:, columns]
        import gguf  # takes a while, and a file without quantised tensors does not need it

        kind = gguf.GGMLQuantizationType[info.kind]
        return torch.from_numpy(gguf.quants.dequantize(data, kind))[:, columns]

    def raw(self, piece: str, rows: slice, columns: slice) -> Raw | None:
        info = self._header.tensors[name_of(piece)]
        start, stop, _ = columns.indices(info.shape[1])
        if start % BLOCK or stop % BLOCK:
            return None
        block = info.row_bytes * BLOCK // info.shape[1]
        own = slice(start // BLOCK * block, stop // BLOCK * block)
        data = torch.from_numpy(np.ascontiguousarray(self._rows(piece, info, rows)[:, own]))
        return Raw(_BLOCKS[info.kind], data)

    def _rows(self, piece: str, info: TensorInfo, rows: slice) -> NDArray[np.uint8]:
        """Bytes `[rows, bytes of a row]`, in our order."""
        stored = np.memmap(self._path, np.uint8, "r", info.offset, (info.shape[0], info.row_bytes))
        if self.config.family in PERMUTED and piece.split(".")[-2] in ("q", "k"):
            order = np.arange(info.shape[0]).reshape(-1, self.config.head_dim // 2, 2)
            return np.array(stored[order.swapaxes(1, 2).ravel()[rows]])
        return np.array(stored[rows])

    def _floats(self, name: str) -> Tensor:
        """Of a vector."""
        info = self._header.tensors[name]
        if info.kind not in _FLOATS or len(info.shape) != 1:
            raise LoadError(f"{self.place}: tensor '{name}' is {info.kind} {info.shape}")
        data = np.fromfile(self._path, np.uint8, info.row_bytes, offset=info.offset)
        return torch.from_numpy(data).view(_FLOATS[info.kind]).float()


def name_of(piece: str) -> str:
    layer, _, kind = piece.rpartition(".")
    block, _, own = layer.rpartition(".")
    return f"{block.replace('blocks', 'blk') + '.' if block else ''}{_NAMES[own]}.{kind}"


def _describe(header: Header) -> Description:
    """Raises DescriptionError."""
    metadata = header.metadata
    if (count := metadata.get("split.count", 1)) != 1:
        raise DescriptionError(
            f"split.count is {count!r}, supported: 1; llama-gguf-split --merge makes one file of a "
            "set"
        )
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise DescriptionError(
            f"general.architecture is {architecture!r}, supported: {', '.join(ARCHITECTURES)}"
        )
    prefix = f"{architecture}."
    own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    for name, value in own.items():
        known = _FIELDS.keys() | _SCALING.keys() | _CHECKED | _MEANINGLESS
        if name not in known and value not in (0, False, 1.0):
            raise DescriptionError(f"{prefix}{name} is {value!r}, and this key is not supported")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise DescriptionError("tensor 'token_embd.weight' is missing")
    fields: dict[str, Any] = {
        "model_type": ARCHITECTURES[architecture],
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "sliding_window": None,
    }
    for key, field in _FIELDS.items():
        value = own.get(key)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]  # the same in every layer
        if value is not None:
            fields[field] = value
    if own.get("rope.scaling.type", "none") != "none":
        fields["rope_scaling"] = {_SCALING[key]: own[key] for key in _SCALING if key in own}
    if architecture == "gemma3":
        layers, heads = fields.get("num_hidden_layers"), fields.get("num_attention_heads")
        scalar = fields.get("head_dim", 256)
        if layers == GEMMA_27B_LAYERS and isinstance(heads, int) and heads > 0:
            scalar = embedding.shape[-1] // heads
        fields["query_pre_attn_scalar"] = scalar
    if architecture == "smollm3":
        fields["no_rope_layer_interval"] = NO_ROPE_INTERVAL
    found = describe_decoder(fields)
    for name, wanted in (
        ("attention.value_length", found.head_dim),
        ("rope.dimension_count", found.head_dim),
        ("vocab_size", found.vocab_size),
    ):
        if own.get(name, wanted) != wanted:
            raise DescriptionError(f"{prefix}{name} is {own[name]!r}, supported here: {wanted}")
    return found
