"""Weights as a GGUF file in llama.cpp's layout (its convert_hf_to_gguf.py), without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from models.description import Description
from models.gpt2 import GPTConfig
from models.networks import Config, make
from models.weights.gguf import ARCHITECTURES, PERMUTED, ROPE_FREQUENCIES, name_of
from models.weights.pieces import pieces_of, shapes_of
from models.weights.source import WeightSource

NO_TOKENIZER = "no_vocab"
KINDS = {
    "float32": Kind.F32, "bfloat16": Kind.BF16, "int8": Kind.Q8_0, "q8_0": Kind.Q8_0,
    "q4_0": Kind.Q4_0,
}  # fmt: skip
# of the embedding, which is the head as well: llama.cpp gives it more bits than other matrices
HEAD_KINDS = {Kind.Q4_0: Kind.Q8_0}
_GPT2_NAMES = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm",
    "qkv": "attn_qkv", "attn_proj": "attn_output", "ln_2": "ffn_norm", "fc": "ffn_up",
    "mlp_proj": "ffn_down",
}  # fmt: skip
EVERYTHING = slice(None)


def write_gguf(source: WeightSource, path: Path, dtype: str) -> None:
    """Matrices in the type of `dtype`, one of KINDS; vectors in float32."""
    config = source.config
    part = path.with_suffix(".part")
    if isinstance(config, GPTConfig):
        writer = gguf.GGUFWriter(part, "gpt2")
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer = _decoder(part, config)
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.n_head)
    writer.add_tokenizer_model(NO_TOKENIZER)
    writer.add_vocab_size(config.vocab_size)
    for name, pieces in _tensors(config).items():
        values = np.concatenate([_values(source, piece) for piece in pieces])
        kind = KINDS[dtype] if values.ndim == 2 and pieces != ["wpe.weight"] else Kind.F32
        if pieces[0].startswith(("wte", "head")):
            kind = HEAD_KINDS.get(kind, kind)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def _decoder(path: Path, config: Description) -> Any:
    architecture = next(name for name, kind in ARCHITECTURES.items() if kind == config.family)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    by_window = zip(config.ropes, config.windows, strict=True)
    whole = next(rope for rope, window in by_window if rope is not None and window is None)
    writer.add_rope_freq_base(whole.base)
    if whole.scaling == "llama3":
        plain = whole.base ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        divisors = plain / whole.frequencies(config.head_dim)
        writer.add_tensor(ROPE_FREQUENCIES, divisors.numpy())
    windows = [window for window in config.windows if window is not None]
    if windows:
        writer.add_sliding_window(windows[0])
    return writer


def _tensors(config: Config) -> dict[str, list[str]]:
    """The pieces of each tensor of the file, in the order of their rows."""
    if isinstance(config, Description):
        return {name_of(piece): [piece] for piece in shapes_of(config)}
    with torch.device("meta"):
        parameters = [name for name, _ in make(config).named_parameters()]
    found = {}
    for parameter in parameters:
        layer, _, kind = parameter.rpartition(".")
        block, _, own = layer.rpartition(".")
        holder = f"{block.replace('blocks', 'blk')}." if block else ""
        found[f"{holder}{_GPT2_NAMES[own]}.{kind}"] = pieces_of(parameter)
    return found


def _values(source: WeightSource, piece: str) -> NDArray[np.float32]:
    """In the order of the file's rows."""
    config = source.config
    values = torch.empty(shapes_of(config)[piece])
    source.read(piece, EVERYTHING, EVERYTHING, values)
    found: NDArray[np.float32] = values.numpy()
    permuted = isinstance(config, Description) and config.family in PERMUTED
    if permuted and piece.split(".")[-2] in ("q", "k"):
        halves = found.reshape(-1, 2, config.head_dim // 2, found.shape[1])
        found = halves.swapaxes(1, 2).reshape(found.shape)
    return np.ascontiguousarray(found)
