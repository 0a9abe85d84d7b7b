"""`./server.sh model-server quantize`: a checkpoint with int8 weights, or a GGUF file with weights
of 8 or 4 bits, made from another one.

Results with int8 equal those of `--dtype int8` with the original to the last bit: both round
weights in the same way. GGUF files are in llama.cpp's layout. Matrices of 8 or 4 bits get a float16
scale for each 32 inputs; with 4 bits, the embedding and the head have 8: what they round is lost at
every token. Tensors are read and written one after the other. A file names the way in which text is
cut before merging; for a folder it is the first that gives the ids of the folder's own tokenizer
for a text of many kinds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders
from torch import Tensor

from models.description import Description, Rope
from models.fetch import locate
from models.names import RANDOM_PREFIX
from models.weights.config import SCHEME
from models.weights.folder import FolderSource
from models.weights.gguf import ARCHITECTURES, PERMUTED, ROPE_FREQUENCIES, GGUFSource, name_of
from models.weights.loader import check
from models.weights.source import CHUNK_VALUES, WeightSource, quantise_int8, shapes_of
from seams import LoadError
from text.chat import PLAIN, TEMPLATE_FILE, TOOL_FILE, templates_of
from text.gguf_vocabulary import CUTS, from_metadata
from text.tokenizer import Tokenizer
from text.vocabulary import MAP_FILE, SETTINGS_FILE, hub_tokenizer, load_tokenizer

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
    of a type: int8, q8_0 or q4_0. Raises LoadError."""
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
    made = out.is_dir()
    out.mkdir(parents=True, exist_ok=True)
    partial, file = out / ".partial", out / "model.gguf"
    try:
        write = from_folder if found.is_dir() else from_file
        write(found, partial, Kind[weights.upper()])
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)
        if not made and not file.exists():
            out.rmdir()
    return Quantised(file, _bytes_of(found), file.stat().st_size)


def _bytes_of(found: Path) -> int:
    files = [found] if found.is_file() else found.glob("*.safetensors")
    return sum(path.stat().st_size for path in files)


_FILE_TYPES = {
    Kind.F32: gguf.LlamaFileType.ALL_F32,
    Kind.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    Kind.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    Kind.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
}
_VOCABULARY = ("token_embd.weight", "output.weight")
_POSITIONS = "position_embd.weight"  # GPT-2's, which llama.cpp adds in float32
_OF_THE_FILE = "GGUF."  # what gguf's reader calls keys that are none
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # types of tokens
PROBE = (
    "Hello World's  3 cats, don't  WE'LL\n\n\n x = 1234567;\r\n\tif (a<=b) {return 12.5e3 }  "
    "éçà Ünïcödé 你好,世界 \U0001f680\U0001f469‍\U0001f4bb ½ Ⅷ 123 4567 'S 'LL  ... !!!  ---   \n  "
)

Keys = Mapping[str, Any]  # of a file; numbers become uint32 or float32, those in lists int32


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

    _write(writer, str(path), [values(tensor) for tensor in reader.tensors], kind)


def from_folder(folder: Path, out: Path, kind: Kind) -> None:
    """Raises LoadError, OSError."""
    source = FolderSource(folder)
    if not isinstance(source.config, Description):
        raise LoadError(f"{folder}: GPT-2 is not written as GGUF; allowed for it: int8")
    from_source(source, out, kind, _vocabulary_of(folder, source.config.vocab_size))
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
    described = {f"{family}.{name}": value for name, value in _keys_of(expected).items()}
    for key, value in {**described, **vocabulary}.items():
        add: dict[type, Callable[..., None]] = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
            str: writer.add_string, list: writer.add_array,
        }  # fmt: skip
        add[type(value)](key, value)
    tensors = []
    divisors = next((r.divisors for r in expected.ropes if r and r.divisors), None)
    if divisors is not None:
        tensors.append(
            Values(ROPE_FREQUENCIES, (len(divisors),), torch.tensor(divisors).__getitem__)
        )

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
    _write(writer, source.place, tensors, kind)


def _write(writer: gguf.GGUFWriter, place: str, tensors: list[Values], kind: Kind) -> None:
    """`place` names the weights in errors. Raises LoadError, OSError."""
    writer.add_file_type(_FILE_TYPES[kind])
    kinds = [_kind_of(tensor, kind) for tensor in tensors]
    for tensor, of in zip(tensors, kinds, strict=True):
        block, size = gguf.GGML_QUANT_SIZES[of]
        stored_bytes = int(np.prod(tensor.shape)) // block * size
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), stored_bytes, of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, of in zip(tensors, kinds, strict=True):
        stored = []
        step = max(1, CHUNK_VALUES // int(np.prod(tensor.shape[1:])))
        for row in range(0, tensor.shape[0], step):
            rows = tensor.read(slice(row, min(tensor.shape[0], row + step)))
            if not rows.isfinite().all():
                raise LoadError(f"{place}: tensor '{tensor.name}' has weights that are not finite")
            stored.append(gguf.quants.quantize(rows.float().numpy(), of))
        writer.write_tensor_data(np.concatenate(stored))
    writer.close()


def _kind_of(tensor: Values, kind: Kind) -> Kind:
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if len(tensor.shape) != 2 or tensor.shape[1] % block or tensor.name == _POSITIONS:
        return Kind.F32
    return Kind.Q8_0 if tensor.name in _VOCABULARY and kind == Kind.Q4_0 else kind


def _keys_of(config: Description) -> Keys:
    rope = next(rope for rope in reversed(config.ropes) if rope is not None)
    full = next((r for r, w in zip(config.ropes, config.windows, strict=True) if r and not w), rope)
    # readers multiply it by the factor of linear scaling, but Gemma's
    stretched = full.scaling == "linear" and not config.norms_after
    keys: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "embedding_length": config.n_embd,
        "block_count": config.n_layer,
        "feed_forward_length": config.mlp_width,
        "attention.head_count": config.n_head,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": full.base,
        "context_length": full.original if stretched else config.context,
    }
    window = next((window for window in config.windows if window is not None), None)
    if window is not None:
        keys["attention.sliding_window"] = window
    if full.scaling != "default":
        keys |= {"rope.scaling.type": full.scaling, "rope.scaling.factor": full.factor}
    if full.scaling == "yarn":
        keys["rope.scaling.original_context_length"] = full.original
    return keys


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


def _vocabulary_of(folder: Path, vocab_size: int) -> Keys:
    """A byte-level vocabulary and the chat template. Raises LoadError."""
    tokenizer, hub = load_tokenizer(str(folder)), hub_tokenizer(folder)
    if not isinstance(hub.decoder, decoders.ByteLevel):
        raise LoadError(f"{folder}: allowed for GGUF: a tokenizer.json of byte-level BPE")
    if tokenizer.vocab_size > vocab_size:
        raise LoadError(
            f"{folder}: the vocabulary has {tokenizer.vocab_size} tokens; allowed: {vocab_size}"
        )
    keys = {
        f"tokenizer.ggml.{name}": value
        for name, value in _tokens(hub, vocab_size, tokenizer).items()
    }
    for keys["tokenizer.ggml.pre"] in CUTS:
        made = from_metadata(keys, str(folder))
        if made.encode(PROBE) == tokenizer.encode(PROBE):
            break
    else:
        raise LoadError(
            f"{folder}: it cuts text in another way than the pre-tokenizers of GGUF files that are "
            f"supported: {', '.join(CUTS)}"
        )
    if made.end_ids != tokenizer.end_ids or made.bos_id != tokenizer.bos_id:
        raise LoadError(f"{folder}: its end tokens are more than a GGUF file can name")
    template = templates_of(folder)["default"]
    return keys if template == PLAIN else {**keys, "tokenizer.chat_template": template}


def _tokens(hub: HubTokenizer, vocab_size: int, tokenizer: Tokenizer) -> Keys:
    tokens = [f"[PAD{token}]" for token in range(vocab_size)]
    types = [_UNUSED] * vocab_size
    special = set(tokenizer.special_ids.values())
    added = hub.get_added_tokens_decoder()
    for text, token in hub.get_vocab(with_added_tokens=True).items():
        if token >= tokenizer.vocab_size:
            continue  # the network has no row for it
        tokens[token], types[token] = text, _NORMAL
        if token in special:
            types[token] = _CONTROL
        elif token in added and tokenizer.token_bytes(token) == text.encode():
            types[token] = _USER_DEFINED  # the others, such as a line's end, are spelled in bytes
    merges = json.loads(hub.to_str())["model"]["merges"]
    keys: dict[str, Any] = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": types,
        "merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in merges],
        "add_bos_token": tokenizer.bos_id is not None,
    }
    if tokenizer.bos_id is not None:
        keys["bos_token_id"] = tokenizer.bos_id
    for name, token in zip(("eos", "eot", "eom"), sorted(tokenizer.end_ids), strict=False):
        keys[f"{name}_token_id"] = token
    return keys
