"""Graphs on a CPU, where they are called instead of replayed: what they compute, what they share,
and when they are not used."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig, init_weights
from requested import Sampling
from runtime.executor import Executor
from runtime.gpu.buckets import Bucket, Buckets
from runtime.gpu.graphs import Graphs
from runtime.gpu.paged import Packed
from runtime.gpu.tables import KeptTables
from runtime.transfer import stage
from seams import Opening, Step

CONFIG = GPTConfig(vocab_size=97, context=512, n_layer=1, n_head=2, n_embd=32)


def make(*, kernel: bool = True) -> Executor:
    network = GPT(CONFIG)
    init_weights(network, 0)
    network.eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=kernel)
    model.allocate(64)
    return model


def test_a_graph_computes_long_and_short_decodes_and_chunks_as_without_it() -> None:
    """Rows of 300 keys, which are split, and of 20, with a part of a prompt and a whole one."""
    past, new, draws = (299, 19, 280, 0), (1, 1, 40, 5), (True, True, False, True)
    outcomes = []
    for graphs in (False, True):
        model = make()
        assert model.gpu is not None
        if graphs:
            model.gpu.record_graphs(4)
            assert model.gpu.graphs is not None
            model.gpu.graphs.replayed = 0
        torch.manual_seed(1)
        for part in (model.pool.keys, model.pool.values):
            part.copy_(torch.randn(part.shape))
        asked = Sampling(temperature=0, logprobs=5)
        steps, taken = [], 0
        for i, (start, count, draw) in enumerate(zip(past, new, draws, strict=True)):
            known = [(7 * i + n) % 97 for n in range(start + count + (not draw))]
            model.open([Opening(i, known, 1, asked)])
            blocks = -(-len(known) // model.block_tokens)
            steps.append(Step(i, start, count, draw, range(taken, taken + blocks)))
            taken += blocks
        outcomes.append(model.start(steps, ()).result())
        assert not graphs or (model.gpu.graphs is not None and model.gpu.graphs.replayed == 1)
    plain, replayed = outcomes
    assert replayed.tokens == plain.tokens
    assert sorted(plain.logprobs) == [0, 1, 3]
    for row, (word,) in plain.logprobs.items():
        (found,) = replayed.logprobs[row]
        for (a, p), (b, q) in zip(word.top, found.top, strict=True):
            assert a == b
            assert p == pytest.approx(q, abs=1e-5)


@pytest.mark.parametrize(
    ("is_wrong", "told"),
    [
        (lambda _: True, "single launches: 15 new tokens"),
        (lambda of: of.pieces and of.splits, "17 new tokens over 256 others differ"),
    ],
)
def test_graphs_that_compute_something_else_are_not_used(
    is_wrong: Callable[[Bucket], bool],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Over KV memory of one block, as when the memory of graphs is measured."""
    model = make()
    model.allocate(1)
    assert model.gpu is not None
    assert model.gpu.record_graphs(4) is None
    run = Graphs._run

    def wrong(graphs: Graphs, bucket: Bucket) -> None:
        run(graphs, bucket)
        graphs._hidden += is_wrong(bucket)

    monkeypatch.setattr(Graphs, "_run", wrong)
    unused = model.gpu.record_graphs(4)
    assert told in str(unused)
    assert str(unused) in caplog.text
    assert model.gpu.graphs is None


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), RuntimeError("not permitted")]
)
def test_without_graphs_a_model_serves_and_the_log_says_why(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise error

    model = make()
    assert model.gpu is not None
    monkeypatch.setattr("runtime.gpu.device.Graphs", failing)
    model.gpu.record_graphs(4)
    assert model.gpu.graphs is None
    assert str(error) in caplog.text
    model.warm_up()
    plain = make(kernel=False).gpu
    assert plain is not None
    assert "the attention kernel is not used" in str(plain.record_graphs(4))
    assert plain.graphs is None


def test_the_memory_of_graphs_is_measured_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1000, 700])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (next(free), 4000))
    model = make()
    assert model.graph_bytes(2) == 300
    assert model.gpu is not None
    assert model.gpu.graphs is None
    assert model.num_blocks == 1


def test_new_kv_memory_is_reserved_when_the_old_one_is_free() -> None:
    """Although graphs were recorded over it, and without the garbage collector."""
    model = make()
    assert model.gpu is not None
    model.gpu.record_graphs(2)
    old: list[weakref.ref[Any]] = [weakref.ref(model.pool), weakref.ref(model.gpu.graphs)]
    gc.disable()
    try:
        model.allocate(1)
        assert [reference() for reference in old] == [None, None]
    finally:
        gc.enable()


def test_all_graphs_share_a_stream_a_pool_of_memory_their_numbers_and_their_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What CUDA would record is only noted here."""
    streams: list[object] = []
    recorded: list[tuple[object, object]] = []
    runs: list[tuple[int, int]] = []

    class Stream:
        def __init__(self) -> None:
            streams.append(self)

        def wait_stream(self, _: object) -> None: ...

    @contextlib.contextmanager
    def graph(_graph: object, pool: object, stream: object) -> Iterator[None]:
        recorded.append((pool, stream))
        yield

    def forward(of: Packed[Tensor], kept: Tensor | None, at: Tensor, _: Tensor) -> Tensor:
        runs.append((at.data_ptr(), len(of.tokens)))
        return torch.zeros(len(of.tokens) if kept is None else len(kept), 8)

    current = Stream()
    streams.clear()
    for name, stub in {
        "Stream": Stream,
        "CUDAGraph": object,
        "graph": graph,
        "stream": lambda _: contextlib.nullcontext(),
        "current_stream": lambda: current,
        "graph_pool_handle": object,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr("runtime.gpu.graphs.stage", lambda arrays, **_: stage(arrays, pinned=False))
    buckets = Buckets(20, 1024, 64)
    tables = KeptTables(20, 16, torch.device("cpu"))
    graphs = Graphs(forward, buckets, 20, 8, torch.float32, tables)
    graphs._record()
    count = len(list(buckets))
    assert len(streams) == 1
    assert len(recorded) == count == len(graphs._graphs)
    assert len(set(recorded)) == 1
    assert len(runs) == 2 * count  # before it is recorded, what is built at first use is built
    assert {address for address, _ in runs} == {graphs._numbers.data_ptr()}
    assert len(graphs._hidden) == 32  # of the largest batch that decodes
