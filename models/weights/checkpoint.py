"""Checkpoints: reading a network's weights, and writing them in the same layout.

A checkpoint is a folder in the Hugging Face layout of GPT-2: `config.json` beside
`model.safetensors`, or shards listed in `model.safetensors.index.json`. Its weights may be int8
(`scheme.py`). Names from the hub are downloaded into such a folder;
`random:NAME` has a shape and no weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from models.gpt2 import GPT, GPTConfig, init_weights
from models.part import WHOLE, Part, PartError
from models.weights.scheme import SchemeError, check_scheme
from seams import RANDOM_PREFIX

EMBEDDED_FOLDER = Path(__file__).resolve().parents[2] / "embedded"

_GPT2 = GPTConfig(vocab_size=50257, context=1024, n_layer=12, n_head=12, n_embd=768)
SHAPES = {
    "gpt2": _GPT2,
    "gpt2-medium": replace(_GPT2, n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": replace(_GPT2, n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": replace(_GPT2, n_layer=48, n_head=25, n_embd=1600),
}

_GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}

# variants of GPT-2 that this network does not compute
_FIXED_FIELDS = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}

# our name -> Hugging Face's name within one block; theirs are Conv1D, so matrices are transposed
_BLOCK_NAMES = {
    "ln_1": "ln_1",
    "qkv": "attn.c_attn",
    "attn_proj": "attn.c_proj",
    "ln_2": "ln_2",
    "fc": "mlp.c_fc",
    "mlp_proj": "mlp.c_proj",
}


# of a repository; the vocabulary is for quantised copies, which are folders
_DOWNLOADED = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]

Thing = TypeVar("Thing")

# replaces a network's linear layers by those with `weight` int8 and `scale`
Int8Layers = Callable[[nn.Module], None]


class CheckpointError(Exception):
    """A model that cannot be loaded; the message says what was found and what is allowed."""


def load_network(model: str, device: torch.device, dtype: torch.dtype, seed: int) -> GPT:
    """The network that `model` names, in one precision."""
    return read_network(model, seed).to(device=device, dtype=dtype)


def read_network(
    model: str,
    seed: int,
    part: Part = WHOLE,
    revision: str | None = None,
    with_int8: Int8Layers | None = None,
) -> GPT:
    """The network that `model` names, or a shard's part of it, for inference: on the CPU, in
    float32. `with_int8`: where its checkpoint has int8 weights, the layers that keep them.

    `model`: `embedded`, a GPT-2 name of the hub, a local folder, or `random:NAME`, whose weights
    are drawn from `seed`. `revision`: of a name of the hub. Raises CheckpointError.
    """
    if model.startswith(RANDOM_PREFIX) and revision is None:
        network = split(random_network(model.removeprefix(RANDOM_PREFIX), seed), part)
    else:
        network = load_checkpoint(find_folder(model, revision), part, with_int8)
    return network.eval().requires_grad_(False)


def random_network(name: str, seed: int) -> GPT:
    """Seeded random weights of a known shape: real work, meaningless text."""
    if name not in SHAPES:
        raise CheckpointError(f"model 'random:{name}' is unknown; allowed: {', '.join(SHAPES)}")
    network = GPT(SHAPES[name])
    total = len(list(network.parameters()))
    init_weights(network, seed, lambda named: _shown(named, total, "drawing weights"))
    return network


def find_folder(model: str, revision: str | None = None) -> Path:
    """The local folder of a checkpoint, downloading it when `model` is a name of the hub.
    `revision`: a branch, tag or commit there. Raises CheckpointError."""
    if revision is not None and model not in SHAPES:
        raise CheckpointError(
            f"--revision is {revision!r}, and model '{model}' is not downloaded; models with "
            f"revisions: {', '.join(SHAPES)}"
        )
    if model == "embedded":
        return EMBEDDED_FOLDER
    if model in SHAPES:
        return _download(model, revision)
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise CheckpointError(
            f"model '{model}' is neither a folder nor a known name; allowed: embedded, "
            f"{', '.join(SHAPES)}, random:NAME with one of these names, or a folder in the "
            "Hugging Face layout"
        )
    return folder


def _download(name: str, revision: str | None) -> Path:
    # imported here: most users are offline and should not wait for it at each start
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                f"openai-community/{name}", revision=revision, allow_patterns=_DOWNLOADED
            )
        )
    except Exception as error:  # the hub's library raises many kinds, which mean the same here
        at = "" if revision is None else f" at revision '{revision}'"
        raise CheckpointError(
            f"the weights of '{name}'{at} could not be fetched from the model hub ({error}). "
            "Without a connection use --model embedded (ships with the project), --model "
            f"random:{name} (random weights of that shape, for measuring speed), or --model FOLDER"
        ) from error


def load_checkpoint(folder: Path, part: Part = WHOLE, with_int8: Int8Layers | None = None) -> GPT:
    """Reads a folder in the Hugging Face layout, or a shard's part of it, into float32.
    `with_int8` keeps int8 weights. Raises CheckpointError."""
    config, int8 = read_config(folder), has_int8(folder)
    network, expected = _empty(config, part, with_int8 if int8 else None)
    names = _hub_names(config.n_layer, int8=int8)
    scales = {ours for ours, _ in names.values() if ours.endswith(".scale")}
    state: dict[str, Tensor] = {}
    for hub_name, source in _shown(read_tensors(folder), len(names), f"loading {folder.name}"):
        ours, transposed = names.get(hub_name.removeprefix("transformer."), ("", False))
        if not ours:
            continue  # causal masks and a tied head, which some exports include
        shape, is_int8 = tuple(source.get_shape()), ours.replace("weight", "scale") in scales
        if ours in scales:
            implied: tuple[int, ...] = (expected[ours.replace("scale", "weight")].shape[0], 1)
        else:
            wanted = tuple(expected[ours].shape)
            implied = wanted[::-1] if transposed else wanted
        if shape != implied:
            raise CheckpointError(
                f"{folder}: tensor '{hub_name}' has shape {shape}, config.json implies {implied}"
            )
        is_int8 = is_int8 and ours not in scales
        if (source.get_dtype() == "I8") != is_int8:
            raise CheckpointError(
                f"{folder}: tensor '{hub_name}' is {source.get_dtype()}, config.json implies "
                f"{'I8' if is_int8 else 'a floating-point type'}"
            )
        own = part.cut(ours, source, shape)
        own = own.flatten() if ours in scales else own.t() if transposed else own
        state[ours] = (own if is_int8 else own.float()).contiguous()
    state["head.weight"] = state.get("wte.weight", torch.empty(0))
    missing = sorted((expected.keys() | scales) - state.keys())
    missing = missing or ([] if "wte.weight" in state else ["wte"])
    if missing:
        raise CheckpointError(f"{folder}: tensors are missing: {', '.join(missing[:5])}")
    if int8 and with_int8 is None:
        for name in scales:
            state[name.replace("scale", "weight")] = (
                state[name.replace("scale", "weight")].float() * state.pop(name)[:, None]
            )
    network.load_state_dict(state, assign=True)
    network.head.weight = network.wte.weight
    return network


def split(network: GPT, part: Part) -> GPT:
    """A shard's part of a network. Raises CheckpointError."""
    if part == WHOLE:
        return network
    own, _ = _empty(network.config, part)
    whole, state = network.state_dict(), {}
    for ours, transposed in _hub_names(network.config.n_layer, int8=False).values():
        source = whole[ours].t() if transposed else whole[ours]
        cut = part.cut(ours, source, source.shape)
        state[ours] = (cut.t() if transposed else cut).contiguous()
    own.load_state_dict({**state, "head.weight": state["wte.weight"]}, assign=True)
    own.head.weight = own.wte.weight
    return own


def _empty(
    config: GPTConfig, part: Part, with_int8: Int8Layers | None = None
) -> tuple[GPT, dict[str, Tensor]]:
    """A network of the part's shape without weights, and the whole network's state. Raises
    CheckpointError."""
    try:
        part.check(config)
    except PartError as error:
        raise CheckpointError(str(error)) from None
    with torch.device("meta"):
        whole, own = GPT(config), GPT(replace(config, shards=part.shards))
        tokens = len(range(config.vocab_size)[part.of(config.vocab_size)])
        own.wte = nn.Embedding(tokens, config.n_embd)
        own.head = nn.Linear(config.n_embd, tokens, bias=False)
        if with_int8 is not None:
            for network in (whole, own):
                with_int8(network.blocks)
    return own, whole.state_dict()


def _shown(things: Iterable[Thing], total: int, doing: str) -> Iterable[Thing]:
    """With a progress bar on terminals only, since programs may read a log."""
    if not sys.stderr.isatty() or find_spec("tqdm") is None:  # benchmarks/gpu.py runs without it
        return things
    from tqdm import tqdm

    return tqdm(things, total=total, desc=doing, leave=False)


def save_checkpoint(network: GPT, folder: Path, dtype: torch.dtype) -> None:
    """Writes `config.json` and `model.safetensors`, readable by this project and by
    `transformers`."""
    config = network.config
    folder.mkdir(parents=True, exist_ok=True)
    activation = next(name for name, approx in _GELU.items() if approx == config.gelu)
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
    state = network.state_dict()
    tensors = {
        f"transformer.{hub}": (state[ours].t() if transposed else state[ours])
        .to("cpu", dtype)
        .contiguous()
        for hub, (ours, transposed) in _hub_names(config.n_layer, int8=False).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def read_config(folder: Path) -> GPTConfig:
    """The shape in a folder's `config.json`. Raises CheckpointError."""
    path, fields = folder / "config.json", read_fields(folder)
    if fields.get("model_type") != "gpt2":
        raise CheckpointError(f"{path}: model_type is {fields.get('model_type')!r}, allowed: gpt2")
    activation = fields.get("activation_function", "gelu_new")
    if activation not in _GELU:
        raise CheckpointError(
            f"{path}: activation_function is {activation!r}, allowed: {', '.join(_GELU)}"
        )
    for name, only in _FIXED_FIELDS.items():
        if fields.get(name, only) != only:
            raise CheckpointError(f"{path}: {name} is {fields[name]!r}, allowed: {only!r}")
    try:
        return GPTConfig(
            vocab_size=int(fields["vocab_size"]),
            context=int(fields["n_positions"]),
            n_layer=int(fields["n_layer"]),
            n_head=int(fields["n_head"]),
            n_embd=int(fields["n_embd"]),
            norm_eps=float(fields.get("layer_norm_epsilon", 1e-5)),
            gelu=_GELU[activation],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: field missing or not a number: {error}") from error


def has_int8(folder: Path) -> bool:
    """Whether a folder's `config.json` says that its weights are int8. Raises CheckpointError."""
    scheme = read_fields(folder).get("quantization_config")
    if scheme is None:
        return False
    try:
        check_scheme(scheme)
    except SchemeError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
    return True


def read_fields(folder: Path) -> dict[str, Any]:
    """Of a folder's `config.json`. Raises CheckpointError."""
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _hub_names(n_layer: int, *, int8: bool) -> dict[str, tuple[str, bool]]:
    """Hugging Face's tensor name -> (ours, whether the matrix is transposed)."""
    names = {
        "wte.weight": ("wte.weight", False),
        "wpe.weight": ("wpe.weight", False),
        "ln_f.weight": ("ln_f.weight", False),
        "ln_f.bias": ("ln_f.bias", False),
    }
    for i in range(n_layer):
        for ours, hub in _BLOCK_NAMES.items():
            linear = not ours.startswith("ln_")
            theirs, own = f"h.{i}.{hub}", f"blocks.{i}.{ours}"
            names[f"{theirs}.weight"] = (f"{own}.weight", linear)
            names[f"{theirs}.bias"] = (f"{own}.bias", False)
            if linear and int8:
                names[f"{theirs}.weight_scale"] = (f"{own}.scale", False)
    return names


def linear_names(n_layer: int) -> set[str]:
    """Hugging Face's names of the matrices that may be int8."""
    return {name for name, (_, transposed) in _hub_names(n_layer, int8=False).items() if transposed}


def read_tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Names and slices: of a slice, what is asked for is read. Raises CheckpointError."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    try:
        if single.exists():
            files = [single]
        else:
            files = [
                folder / name
                for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))
            ]
        for file in files:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
                    yield name, opened.get_slice(name)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: no readable model.safetensors or model.safetensors.index.json: {error}"
        ) from error
