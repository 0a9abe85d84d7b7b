"""Every family computes in two shards, and in bfloat16, what `transformers` does, and refuses what
it does not compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from models.networks import Network, Part
from models.weights.folder import FolderSource
from models.weights.loader import load
from runtime.attention import Span, Spans, attention_on_cpu
from runtime.cache import BLOCK_TOKENS, BlockTable, KVPool, KVShape
from runtime.shards import connect, join
from seams import LoadError
from tests.models.families import CONTEXT, VOCAB, logits_of, write_all
from tests.support.process import free_port

TOLERANCE = 1e-4  # of a logit, float32
CPU = torch.device("cpu")
BLOCKS = CONTEXT // BLOCK_TOKENS


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    return write_all(tmp_path_factory)


def tokens_of(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (count,), generator=generator).tolist()


@torch.inference_mode()
def computed(
    network: Network, pool: KVPool, rows: list[tuple[list[int], int, int]], tables: list[BlockTable]
) -> Tensor:
    """Logits of the tokens from `start` to `end` of each row, beside each other."""
    tokens, positions, spans = list[int](), list[int](), list[Span]()
    for (ids, start, end), table in zip(rows, tables, strict=True):
        spans.append(Span(len(tokens), end - start, start, table))
        tokens += ids[start:end]
        positions += range(start, end)
    attend = attention_on_cpu(Spans.of(spans), pool)
    hidden = network(torch.tensor(tokens), torch.tensor(positions), attend)
    return network.head(hidden)


def pool_of(network: Network, rows: int, dtype: torch.dtype = torch.float32) -> KVPool:
    return KVPool(KVShape.of(network.config, dtype, CPU), rows * BLOCKS)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_bfloat16_is_as_close_to_float32_as_transformers_is(
    name: str, checkpoints: dict[str, tuple[Path, Any]]
) -> None:
    folder, peer = checkpoints[name]
    network = load(FolderSource(folder), dtype=torch.bfloat16)
    ids = tokens_of(4, 64)
    exact = logits_of(peer, ids).log_softmax(-1)
    from transformers import AutoModelForCausalLM

    halved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    theirs = logits_of(halved, ids).float().log_softmax(-1)
    table = BlockTable(range(BLOCKS))
    pool = pool_of(network, 1, torch.bfloat16)
    ours = computed(network, pool, [(ids, 0, 64)], [table]).float().log_softmax(-1)
    divergence = [(exact.exp() * (exact - found)).sum(-1).mean() for found in (ours, theirs)]
    assert divergence[0] <= 1.2 * divergence[1]


def shard(rank: int, port: int, folders: dict[str, Path], out: str) -> None:
    torch.set_num_threads(1)
    part = Part(rank, 2)
    join(f"127.0.0.1:{port}", part, CPU)
    found = {}
    for name, folder in folders.items():
        network = load(FolderSource(folder), part)
        connect(network, part)
        table = BlockTable(range(BLOCKS))
        found[name] = computed(network, pool_of(network, 1), [(tokens_of(1, 90), 0, 90)], [table])
    if rank == 0:
        torch.save(found, out)
    dist.destroy_process_group()  # gloo's threads may abort a process that ends beside them


def test_two_shards_compute_the_same(
    checkpoints: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folders = {name: folder for name, (folder, _) in checkpoints.items()}
    out = str(tmp_path / "logits")
    spawn(shard, (free_port(), folders, out), nprocs=2)  # type: ignore[no-untyped-call]
    for name, found in torch.load(out).items():
        expected = logits_of(checkpoints[name][1], tokens_of(1, 90))
        assert (found - expected).abs().max() <= TOLERANCE, name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu', supported: silu, gelu_pytorch_tanh"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "RoPE scaling is 'longrope', supported"),
        ({"rope_parameters": 3}, "rope_parameters is 3, supported: an object"),
        ({"rope_parameters": {"rope_type": "linear"}}, "RoPE scaling 'linear' has no factor"),
        ({"num_key_value_heads": 3}, "4 attention heads of 16 over 3 heads of keys"),
        ({"hidden_size": -64}, "hidden_size is -64, supported: a number of 1 or more"),
        ({"residual_multiplier": 0.22}, "residual_multiplier is 0.22, and this field is not supp"),
        ({"num_hidden_layers": 4}, "tensors are missing: blocks.3.ln_1.weight"),
        ({"intermediate_size": 96}, "implies (96, 64)"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    fields: dict[str, Any],
    message: str,
    checkpoints: dict[str, tuple[Path, Any]],
    tmp_path: Path,
) -> None:
    folder = checkpoints["llama"][0]
    whole = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(whole | fields))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(LoadError) as refused:
        load(FolderSource(tmp_path))
    assert message in str(refused.value)
