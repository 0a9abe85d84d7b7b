"""Weights as a GGUF file in llama.cpp's layout (its convert_hf_to_gguf.py), without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Type
from torch import Tensor

from model_server.gguf_vocabulary import Keys
from model_server.gguf_writer import Values, from_source, write
from models.gpt2 import GPTConfig
from models.networks import make
from models.weights.pieces import pieces_of
from models.weights.source import WeightSource

KINDS = {
    "float32": Kind.F32, "bfloat16": Kind.BF16, "int8": Kind.Q8_0, "q8_0": Kind.Q8_0,
    "q4_0": Kind.Q4_0,
}  # fmt: skip
_NO_VOCABULARY: Keys = {"tokenizer.ggml.model": ("no_vocab", Type.STRING, None)}
_GPT2_NAMES = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm",
    "qkv": "attn_qkv", "attn_proj": "attn_output", "ln_2": "ffn_norm", "fc": "ffn_up",
    "mlp_proj": "ffn_down",
}  # fmt: skip
EVERYTHING = slice(None)


def write_gguf(source: WeightSource, path: Path, dtype: str) -> None:
    """Matrices in the type of `dtype`, one of KINDS; vectors in float32."""
    part, kind = path.with_suffix(".part"), KINDS[dtype]
    if isinstance(source.config, GPTConfig):
        _gpt2(source, source.config, part, kind)
    else:
        from_source(source, part, kind, _NO_VOCABULARY)
    part.rename(path)


def _gpt2(source: WeightSource, config: GPTConfig, path: Path, kind: Kind) -> None:
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_layer_norm_eps(config.norm_eps)
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.n_head)
    writer.add_vocab_size(config.vocab_size)
    with torch.device("meta"):
        parameters = dict(make(config).named_parameters())

    def values(parameter: str, shape: tuple[int, ...]) -> Values:
        """One tensor has queries, keys and values."""
        layer, _, kind = parameter.rpartition(".")
        block, _, own = layer.rpartition(".")
        holder = f"{block.replace('blocks', 'blk')}." if block else ""

        def read(rows: slice) -> Tensor:
            parts = [source.values(p, EVERYTHING, EVERYTHING) for p in pieces_of(parameter)]
            return torch.cat(parts)[rows].float()

        return Values(f"{holder}{_GPT2_NAMES[own]}.{kind}", shape, read)

    tensors = [values(name, tuple(parameter.shape)) for name, parameter in parameters.items()]
    write(writer, source.place, tensors, kind, _NO_VOCABULARY)
