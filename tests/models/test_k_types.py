"""Q4_K, Q5_K and Q6_K: our logits against those of llama.cpp, from the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn

from models.networks import Network
from models.part import WHOLE
from models.weights.gguf import GGUFSource
from models.weights.loader import load
from runtime.cache import BlockTable
from runtime.linear.blocks import BlockLinear
from runtime.linear.quantised import BLOCK_LAYERS, block_embedding
from tests.models.gguf_files import random_blocks
from tests.models.test_decoder import BLOCKS, computed, pool_of
from tests.peers import asked
from tests.text import llama
from tests.text.test_gguf_vocabulary import recorded

LAYERS, WIDTH, MLP, HEADS, KV_HEADS, HEAD_DIM = 2, 512, 768, 8, 2, 64
LENGTHS, ALONE = (90, 33, 1), 8  # of the prompts; the last tokens of each are computed one by one
BLOCK = 256  # values that share a float scale in llama.cpp's inputs (its Q8_K)
MOST = {"float32": 2.0, "8 bits": 3.0}
PROGRAM = """
import json, sys
import numpy as np
from llama_cpp import Llama
path, prompts, alone, out = json.load(sys.stdin)
model = Llama(path, n_ctx=512, logits_all=True, verbose=False)
found = []
for ids in prompts:
    model.reset()
    whole = max(1, len(ids) - alone)
    model.eval(ids[:whole])
    for token in ids[whole:]:
        model.eval([token])
    found.append(model.scores[: len(ids)].copy())
np.save(out, np.concatenate(found))
print(json.dumps(len(found)))
"""


def write_file(path: Path, kind: Kind) -> int:
    """A network of the llama family whose matrices are all of this type, with a spread that keeps
    attention far from a single key; returns the size of its vocabulary."""
    rng = np.random.default_rng(8)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    fields = {**recorded("byte-level")["fields"], **llama.BYTE_LEVEL["smollm"]}
    llama.add_fields(writer, llama.named(fields))
    vocab_size = len(fields["tokens"])
    writer.add_vocab_size(vocab_size)

    def add(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        data = random_blocks(kind, rows, columns, gain / columns**0.5, rng)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", rng.normal(1, 0.2, WIDTH).astype(np.float32))

    add("token_embd", vocab_size, WIDTH, WIDTH**0.5)
    add("output", vocab_size, WIDTH, 2.0)
    add_norm("output_norm")
    for layer in range(LAYERS):
        add_norm(f"blk.{layer}.attn_norm")
        add_norm(f"blk.{layer}.ffn_norm")
        add(f"blk.{layer}.attn_q", HEADS * HEAD_DIM, WIDTH)
        add(f"blk.{layer}.attn_k", KV_HEADS * HEAD_DIM, WIDTH)
        add(f"blk.{layer}.attn_v", KV_HEADS * HEAD_DIM, WIDTH)
        add(f"blk.{layer}.attn_output", WIDTH, HEADS * HEAD_DIM)
        add(f"blk.{layer}.ffn_gate", MLP, WIDTH)
        add(f"blk.{layer}.ffn_up", MLP, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, MLP)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return vocab_size


def logits(network: Network, prompts: list[list[int]]) -> Tensor:
    """Of all tokens of all prompts, `[tokens, vocabulary]`."""
    rows = [
        computed(network, pool_of(network, 1), [(ids, 0, len(ids))], [BlockTable(range(BLOCKS))])
        for ids in prompts
    ]
    return torch.cat(rows)


@contextmanager
def rounded_inputs(network: nn.Module) -> Iterator[None]:
    """As llama.cpp computes products with K types: the inputs become 8 bits, each BLOCK by their
    own largest value."""

    def rounded(_: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
        blocks = given[0].unflatten(-1, (-1, BLOCK))
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        return (((blocks / scale).round() * scale).flatten(-2),)

    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_pre_hook(rounded) for module in linears]
    yield
    for hook in hooks:
        hook.remove()


def distance(one: Tensor, other: Tensor) -> float:
    """Root mean square of what differs, as a share of the logits' spread."""
    return float((one - other).square().mean().sqrt() / other.std())


READ: dict[str, Callable[[Path], Network]] = {
    "float32": lambda path: load(GGUFSource(path)),
    "8 bits": lambda path: load(
        GGUFSource(path), WHOLE, torch.float32, BLOCK_LAYERS, block_embedding
    ),  # of --dtype auto
}


@pytest.mark.long
@pytest.mark.timeout(3600)  # compiles llama.cpp once
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_logits_of_k_types_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    """llama.cpp rounds the inputs of every product to 8 bits, which no two implementations do
    alike, so its logits differ from exact ones by as much as such rounding changes ours: some
    hundredths of their spread. From dequantised weights we may differ by twice that, and by three
    times where the weights are rounded to 8 bits and the inputs once more. A block that is read
    wrong (a nibble, a scale or a minimum in another's place) differs by the spread itself."""
    path, out = tmp_path / "k.gguf", tmp_path / "logits.npy"
    vocab_size = write_file(path, Kind[kind])
    rng = np.random.default_rng(9)
    prompts = [rng.integers(0, vocab_size, length).tolist() for length in LENGTHS]
    asked("llamacpp", PROGRAM, [str(path), prompts, ALONE, str(out)])
    theirs = torch.from_numpy(np.load(out))

    exact = READ["float32"](path)
    expected = logits(exact, prompts)
    with rounded_inputs(exact):
        rounding = distance(logits(exact, prompts), expected)
    assert 1e-3 < rounding < 0.1, "or the comparison would say nothing"
    for name, read in READ.items():
        network = read(path)
        is_stored = [isinstance(module, BlockLinear) for module in network.modules()]
        assert any(is_stored) == (name == "8 bits")
        found = distance(logits(network, prompts), theirs)
        print(f"{kind}, {name}: {found:.4f} of the spread, of which rounding makes {rounding:.4f}")
        assert found <= MOST[name] * rounding
