"""Graphs on a CPU, where they are called instead of replayed: what they compute, what they share,
and when they are not used. And what a start prepares, so that no request waits for it."""

from __future__ import annotations

import gc
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from model import DynamicBatchingServerModel
from models.gpt2 import GPT, GPTConfig, init_weights
from runtime.executor import Executor
from runtime.gpu.buckets import Bucket, Buckets
from runtime.gpu.graphs import Graphs
from runtime.gpu.paged import Packed
from runtime.gpu.tables import KeptTables
from runtime.transfer import stage
from seams import Opening, Sampling, Step
from tests.kernels.conftest import launched

CONTEXT = 512  # more than one program reads of a row
CONFIG = GPTConfig(vocab_size=97, context=CONTEXT, n_layer=1, n_head=2, n_embd=32)


def make(*, kernel: bool = True, blocks: int = 64) -> Executor:
    network = GPT(CONFIG)
    init_weights(network, 0)
    network.eval().requires_grad_(False)
    model = DynamicBatchingServerModel(network, torch.float32, "small", kernel=kernel)
    model.allocate(blocks)
    return model


def recorded(model: Executor, rows: int) -> str | None:
    """Why its graphs are not used."""
    assert model.gpu is not None
    return model.gpu.record_graphs(rows)


def graphs_of(model: Executor) -> Graphs | None:
    return None if model.gpu is None else model.gpu.graphs


def test_graphs_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over KV memory of one block, as when the memory of graphs is measured."""
    model = make(blocks=1)
    assert recorded(model, 4) is None
    run = Graphs._run

    def wrong(graphs: Graphs, bucket: Bucket) -> None:
        run(graphs, bucket)
        graphs._hidden += bool(bucket.pieces and bucket.splits)

    monkeypatch.setattr(Graphs, "_run", wrong)
    unused = recorded(model, 4)
    assert "17 new tokens over 256 others differ" in str(unused)
    assert str(unused) in caplog.text
    assert graphs_of(model) is None


def test_without_graphs_a_model_serves_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    model = make()
    monkeypatch.setattr("runtime.gpu.device.Graphs", failing)
    recorded(model, 4)
    assert graphs_of(model) is None
    assert "no memory" in caplog.text
    model.warm_up()
    plain = make(kernel=False)
    assert "the attention kernel is not used" in str(recorded(plain, 4))
    assert graphs_of(plain) is None


def test_new_kv_memory_is_reserved_when_the_old_one_is_free() -> None:
    """Although graphs were recorded over it, and without the garbage collector."""
    model = make()
    recorded(model, 2)
    old: list[weakref.ref[Any]] = [weakref.ref(model.pool), weakref.ref(graphs_of(model))]
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
    addresses: list[int] = []

    def forward(of: Packed[Tensor], kept: Tensor | None, at: Tensor, _: Tensor) -> Tensor:
        addresses.append(at.data_ptr())
        return torch.zeros(len(of.tokens) if kept is None else len(kept), 8)

    cuda = mock.MagicMock()
    monkeypatch.setattr("runtime.gpu.graphs.torch.cuda", cuda)
    monkeypatch.setattr("runtime.gpu.graphs.stage", lambda arrays, **_: stage(arrays, pinned=False))
    buckets, tables = Buckets(20, 1024, 64), KeptTables(20, 16, torch.device("cpu"))
    graphs = Graphs(forward, buckets, 20, 8, torch.float32, tables)
    graphs._record()
    shared = {"pool": cuda.graph_pool_handle.return_value, "stream": cuda.Stream.return_value}
    calls = cuda.graph.call_args_list
    assert [call.kwargs for call in calls] == [shared] * len(list(buckets))
    assert cuda.Stream.call_count == cuda.graph_pool_handle.call_count == 1
    # before it is recorded, what is built at first use is built
    assert addresses == [graphs._numbers.data_ptr()] * 2 * len(calls)


def test_the_warm_up_launches_every_kernel_of_a_long_row() -> None:
    """Triton compiles a kernel at its first launch, which takes seconds. The KV memory of a start
    may be too small for a long row."""
    model = make(blocks=1)
    with launched() as before:
        model.warm_up()
    blocks = -(-CONTEXT // model.block_tokens)
    model.allocate(blocks)
    model.pool.keys.zero_()  # of the positions that are not computed here
    model.pool.values.zero_()
    model.open([Opening(0, [1] * CONTEXT, CONTEXT, Sampling())])
    with launched() as names:
        model.start([Step(0, 0, 20, False, range(blocks))], ()).result()
        model.start([Step(0, CONTEXT - 1, 1, True, ())], ()).result()
    assert len(set(names)) >= 3
    assert set(names) <= set(before)
