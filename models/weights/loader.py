"""Builds the network that a name means, or a shard's part of it, from its source of weights, and
writes this project's checkpoints.

Each piece is read into the type that the network will have, a few million values at a time, so that
little memory is taken beside the weights themselves. A checkpoint is a folder in the Hugging Face
layout (`folder.py`). Names from the hub are downloaded into such a folder; `random:NAME` has a
shape and no weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.decoder import RMSNorm
from models.fetch import locate
from models.gpt2 import GPT
from models.gpt2 import embedding as vocabulary_embedding
from models.names import RANDOM_PREFIX
from models.networks import SHAPES, WHOLE, Config, Network, Part, make
from models.weights.config import GELU
from models.weights.folder import FolderSource, tensor_of
from models.weights.gguf import GGUFSource
from models.weights.source import (
    BLOCK,
    CHUNK_VALUES,
    ROUNDED,
    STORED_BITS,
    RandomSource,
    Raw,
    WeightSource,
    is_linear,
    pieces_of,
    quantise_int8,
    quantise_q8_0,
    shapes_of,
    together,
)
from seams import LoadError

Thing = TypeVar("Thing")

# For a type of quantised weights: the layer that computes them, from the layer without weights in
# whose place it stands, the weights, and the bias.
StoredLayers = Mapping[str, Callable[[nn.Linear, Raw, Tensor | None], nn.Module]]
# the embedding that shares such a head's weights, and gives this type
StoredEmbedding = Callable[[nn.Module, torch.dtype], nn.Module]


def load(
    source: WeightSource,
    part: Part = WHOLE,
    dtype: torch.dtype = torch.float32,
    stored: StoredLayers | None = None,
    embedding: StoredEmbedding | None = None,
) -> Network:
    """On the CPU, for inference. `stored`: the layers that hold quantised weights, by their type;
    weights for which `held_kind` gives none become `dtype`. Raises LoadError."""
    check(source, part)
    loading = _Loading(source, part, stored or {})
    network = _empty(source.config, part)
    if source.config.tied and embedding is not None and part == WHOLE:
        head = loading.stored_layer("head", network.head)
        if head is not None:
            network.set_submodule("head", head)
            network.set_submodule("wte", embedding(head, dtype))
    for path, module in _shown(list(network.named_modules()), f"loading {source.place}"):
        if isinstance(module, nn.Linear):
            layer = loading.stored_layer(path, module)
            if layer is not None:
                network.set_submodule(path, layer)
                continue
        own = torch.float32 if isinstance(module, RMSNorm) else dtype
        for kind, parameter in list(module.named_parameters(recurse=False)):
            if not (source.config.tied and path == "head"):
                setattr(module, kind, loading.parameter(f"{path}.{kind}", parameter, own))
    if source.config.tied and isinstance(network.head, nn.Linear):
        network.head.weight = network.wte.weight
    return network.eval().requires_grad_(False)


def check(source: WeightSource, part: Part = WHOLE) -> None:
    """That everything is there, in the right shape, and can be split so. Raises LoadError."""
    part.check(source.config)
    missing = []
    for piece, shape in shapes_of(source.config).items():
        found = source.shape(piece)
        if found is None:
            missing.append(piece)
        elif found != shape:
            raise LoadError(
                f"{source.place}: tensor for '{piece}' has shape {found}, its configuration "
                f"implies {shape}"
            )
    if missing:
        raise LoadError(f"{source.place}: tensors are missing: {', '.join(missing[:5])}")


def held_kind(source: WeightSource, pieces: Iterable[str], kinds: Collection[str]) -> str | None:
    """The type in which a linear layer's weights are held, one of `kinds`; None: as floating-point
    numbers. Weights of a type that no layer computes, or of several, become 8 bits; if int8 is the
    only one of `kinds`, all weights become int8."""
    found = {source.storage(piece) for piece in pieces}
    if len(found) == 1 and found <= set(kinds):
        return found.pop()
    if set(kinds) == {"int8"}:
        return "int8"
    return "q8_0" if "q8_0" in kinds and found <= {*kinds, *ROUNDED} else None


def held_bytes(source: WeightSource, part: Part, dtype: torch.dtype, kinds: Collection[str]) -> int:
    """The memory that the weights will take on a CPU, where a head is a copy of a tied embedding,
    unless its weights are in blocks. `kinds`: as of `held_kind`."""
    bits = 0.0
    for piece, shape in shapes_of(source.config).items():
        values = torch.empty(shape, device="meta")[part.cut(piece, shape)[: len(shape)]].numel()
        is_held = is_linear(piece) or piece in ("wte.weight", "head.weight")
        kind = held_kind(source, together(piece), kinds) if is_held else None
        plain = 8 * dtype.itemsize
        as_stored = plain if kind is None else STORED_BITS[kind]
        if piece == "wte.weight":
            shared = kind not in (None, "int8") and part == WHOLE
            bits += values * ((0 if shared else plain) + as_stored if source.config.tied else plain)
        else:
            bits += values * as_stored
    return int(bits / 8)


class _Loading:
    def __init__(self, source: WeightSource, part: Part, stored: StoredLayers) -> None:
        self._source, self._part, self._stored = source, part, stored
        self._shapes = shapes_of(source.config)

    def parameter(self, name: str, empty: Tensor, dtype: torch.dtype) -> nn.Parameter:
        filled, row = torch.empty(empty.shape, dtype=dtype, device="cpu"), 0
        for piece in pieces_of(name):
            rows, columns = self._part.cut(piece, self._shapes[piece])
            count = len(range(self._shapes[piece][0])[rows])
            self._source.read(piece, rows, columns, filled[row : row + count])
            row += count
        return nn.Parameter(filled, requires_grad=False)

    def stored_layer(self, path: str, empty: nn.Linear) -> nn.Module | None:
        """None: its weights become floating-point numbers."""
        tied = path == "head" and self._source.config.tied
        pieces = pieces_of("wte.weight" if tied else f"{path}.weight")
        kind = held_kind(self._source, pieces, self._stored.keys())
        if kind is None:
            return None
        raws = []
        for piece in pieces:
            cut = self._part.cut(piece, self._shapes[piece])
            as_stored = self._source.storage(piece) == kind
            raw = self._source.raw(piece, *cut) if as_stored else self._rounded(piece, *cut, kind)
            if raw is None:
                return None
            raws.append(raw)
        scales = [raw.scale for raw in raws if raw.scale is not None]
        whole = Raw(
            kind,
            raws[0].data if len(raws) == 1 else torch.cat([raw.data for raw in raws]),
            torch.cat(scales) if scales else None,
        )
        bias = None
        if empty.bias is not None:
            bias = self.parameter(f"{path}.bias", empty.bias, torch.float32).detach()
        return self._stored[kind](empty, whole, bias)

    def _rounded(self, piece: str, rows: slice, columns: slice, kind: str) -> Raw | None:
        """To int8 or q8_0. None: its inputs are no whole blocks."""
        outputs, inputs = self._shapes[piece]
        start, stop, _ = rows.indices(outputs)
        step = max(1, CHUNK_VALUES // inputs)
        chunks = (slice(row, min(stop, row + step)) for row in range(start, stop, step))
        if kind == "int8":
            data = torch.empty(stop - start, len(range(inputs)[columns]), dtype=torch.int8)
            scale = torch.empty(stop - start)
            for chunk in chunks:  # the scale is that of whole rows: the same for all shards
                values = self._source.values(piece, chunk, slice(None)).float()
                own, largest = slice(chunk.start - start, chunk.stop - start), values.abs().amax(1)
                data[own], scale[own] = quantise_int8(values[:, columns], largest)
            return Raw(kind, data, scale)
        if len(range(inputs)[columns]) % BLOCK:
            return None
        return Raw(
            kind,
            torch.cat([quantise_q8_0(self._source.values(piece, c, columns)) for c in chunks]),
        )


def _empty(config: Config, part: Part) -> Network:
    """A network of the part's shape without weights."""
    with torch.device("meta"):
        network = make(replace(config, shards=part.shards))
        if part.shards > 1:
            tokens = len(range(config.vocab_size)[part.of(config.vocab_size)])
            network.wte = vocabulary_embedding(tokens, config.n_embd)
            network.head = nn.Linear(config.n_embd, tokens, bias=False)
    return network


def _shown(things: list[Thing], doing: str) -> Iterable[Thing]:
    """With a progress bar on terminals only, since programs may read a log."""
    if find_spec("tqdm") is None:  # benchmarks/gpu.py runs without it
        return things
    from tqdm import tqdm

    return tqdm(things, desc=doing, leave=False, disable=None)


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
