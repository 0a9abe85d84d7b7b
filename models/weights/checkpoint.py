"""The weights of the model that a name means, and checkpoints that this project writes.

A checkpoint is a folder in the Hugging Face layout (`folder.py`). Names from the hub are downloaded
into such a folder; `random:NAME` has a shape and no weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.fetch import locate
from models.gpt2 import GPT
from models.names import RANDOM_PREFIX
from models.networks import SHAPES
from models.part import WHOLE, Part
from models.weights.config import GELU
from models.weights.folder import FolderSource, tensor_of
from models.weights.gguf import GGUFSource
from models.weights.loader import StoredLayers, load
from models.weights.source import RandomSource, WeightSource, pieces_of
from seams import LoadError


def open_source(model: str, seed: int, revision: str | None = None) -> WeightSource:
    """The weights of what `model` names (models/names.py); those of `random:NAME` are drawn from
    `seed`. `revision`: of a name of the hub. Raises LoadError."""
    if model.startswith(RANDOM_PREFIX) and revision is None:
        name = model.removeprefix(RANDOM_PREFIX)
        if name not in SHAPES:
            raise LoadError(f"model 'random:{name}' is unknown; allowed: {', '.join(SHAPES)}")
        return RandomSource(SHAPES[name], seed)
    found = locate(model, revision)
    return GGUFSource(found) if found.is_file() else FolderSource(found)


def load_network(
    model: str | Path,
    dtype: torch.dtype = torch.float32,
    part: Part = WHOLE,
    stored: StoredLayers | None = None,
) -> GPT:
    """The GPT-2 that `model` names, or a shard's part of it. Raises LoadError."""
    network = load(open_source(str(model), 0), part, dtype, stored)
    if not isinstance(network, GPT):
        raise LoadError(f"model_type is '{network.config.family}', allowed here: gpt2")
    return network


def save_checkpoint(network: GPT, folder: Path, dtype: torch.dtype) -> None:
    """Writes `config.json` and `model.safetensors` of a GPT-2, readable by this project and by
    `transformers`."""
    config = network.config
    folder.mkdir(parents=True, exist_ok=True)
    activation = next(name for name, approx in GELU.items() if approx == config.gelu)
    fields = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": activation,
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "layer_norm_epsilon": config.norm_eps,
        "bos_token_id": config.vocab_size - 1,
        "eos_token_id": config.vocab_size - 1,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    tensors: dict[str, Tensor] = {}
    for ours, parameter in network.named_parameters():
        where = tensor_of(pieces_of(ours)[0], config)
        tensor = parameter.detach().t() if where.transposed else parameter.detach()
        tensors[f"transformer.{where.name}"] = tensor.to("cpu", dtype).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
