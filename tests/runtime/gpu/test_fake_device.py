"""Whole iterations on a GPU that is not there: where every tensor lies, what waits for the device
and what is copied.

Its tensors are on torch's `meta` device, without contents. Reading these, or computing with a
tensor of the host's, fails. The executor runs as it is, but for what is read back, which is zeros,
and for graphs, whose replays do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import runtime.transfer
from model import DynamicBatchingServerModel, LoadOptions, ServerModel, load_model
from models.gpt2 import GPT, GPTConfig
from models.weights.loader import open_source
from runtime.drafting import Lookup
from runtime.executor import Executor
from runtime.gpu.device import Device
from runtime.gpu.graphs import Graphs
from runtime.gpu.selfcheck import Verdict
from runtime.transfer import stage
from seams import Drafts, Opening, Sampling, Step
from tests.runtime.gpu.pretend import pretend_gpus

GPU = torch.device("meta")
# nothing is launched for these
FREE = ("empty", "new_empty", "detach", "alias", "_unsafe_view", "lift", "device")


class Operators(TorchDispatchMode):
    """The operators that were called on the device, without views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if all(of.device == GPU for of in tree_leaves(out) if isinstance(of, Tensor)):
            name = func.overloadpacket.__name__
            if not func.is_view and not name.startswith(FREE):
                self.names.append(name)
        return out


class ReadBack:
    """Zeros, where the device's numbers would be."""

    def __init__(self, tensors: Sequence[Tensor], _: torch.device) -> None:
        numpy = runtime.transfer.NUMPY
        assert all(tensor.device == GPU for tensor in tensors)
        self._arrays = [np.zeros(tensor.shape, numpy[tensor.dtype]) for tensor in tensors]

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        return list(self._arrays)


@pytest.fixture(autouse=True)
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def record(graphs: Graphs) -> None:
        graphs._graphs = {bucket: mock.Mock() for bucket in graphs._fixed}

    monkeypatch.setattr("runtime.executor.ReadBack", ReadBack)
    monkeypatch.setattr(Graphs, "_record", record)
    monkeypatch.setattr("runtime.gpu.graphs.stage", lambda arrays, **_: stage(arrays, pinned=False))
    monkeypatch.setattr(Device, "_difference", lambda *_: None)
    for kind, name in ((Executor, "start"), (Device, "record_graphs")):
        # inference mode would hide operators
        monkeypatch.setattr(kind, name, getattr(kind, name).__wrapped__)
    with torch.no_grad():
        yield


# --- iterations -----------------------------------------------------------------------------

CONFIG = GPTConfig(vocab_size=97, context=64, n_layer=1, n_head=2, n_embd=32)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = 3  # of each row
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item"}
GREEDY = Sampling(temperature=0)
SETTINGS = {
    "greedy": GREEDY,
    "penalties": Sampling(repetition_penalty=1.2, min_tokens=2, end_ids=(5,)),
    "logprobs": Sampling(logprobs=3, prompt_logprobs=2),
    "all": Sampling(
        top_k=9, top_p=0.9, min_p=0.1, typical_p=0.9, repetition_penalty=1.2, logprobs=3,
        presence_penalty=0.5, logit_bias=((3, 1.0),), prompt_logprobs=2,
    ),
}  # fmt: skip
CASES = [
    *((DynamicBatchingServerModel, name, True) for name in SETTINGS),
    *((kind, "all", False) for kind in (ServerModel, DynamicBatchingServerModel)),
    (ServerModel, "all", True),
]


def network(config: GPTConfig, dtype: torch.dtype) -> GPT:
    with GPU:
        return GPT(config).to(dtype).eval().requires_grad_(False)


def made(
    rows: int,
    dtype: torch.dtype,
    *,
    kind: type[Executor] = DynamicBatchingServerModel,
    kernel: bool = True,
) -> Executor:
    model = kind(network(CONFIG, dtype), dtype, "a", kernel=kernel)
    model.allocate(rows * BLOCKS)
    return model


def run(
    sampling: Sampling, mask: Sequence[bool], dtype: torch.dtype, **of: Any
) -> tuple[Operators, Operators]:
    """Two iterations: a prompt of each row, then a token of those in `mask`, launched before the
    prompts' tokens are read. `of`: as in `made`."""
    rows, prompt = range(len(mask)), 20
    model = made(len(rows), dtype, **of)
    model.open([Opening(i, [1] * prompt, prompt, sampling) for i in rows])
    with Operators() as prefill:
        steps = [Step(i, 0, prompt, True, range(i * BLOCKS, (i + 1) * BLOCKS)) for i in rows]
        first = model.start(steps, ())
    with Operators() as decode:
        held = [i for i in rows if not mask[i]] if isinstance(model, ServerModel) else []
        steps = [Step(i, prompt, 1, True, ()) for i in rows if mask[i]]
        second = model.start([*steps, *(Step(i, prompt, 0, False, ()) for i in held)], ())
    first.result()
    assert sum(map(len, second.result().tokens)) == sum(mask)
    return prefill, decode


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_iteration_stays_on_the_device_and_more_rows_take_no_more_operators(
    number: int,
) -> None:
    """By kernels and by torch's operators, in each type, with all rows and with some."""
    kind, name, kernel = CASES[number]
    few, many = (
        run(SETTINGS[name], [i % 3 < 2 + number % 2 for i in range(rows)], DTYPES[number % 3],
            kind=kind, kernel=kernel)
        for rows in (3, 9)
    )  # fmt: skip
    for operators, of_more in zip(few, many, strict=True):
        assert operators.names
        assert of_more.names == operators.names
        assert not WAITING & set(operators.names)


def test_an_iteration_with_drafts_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose token is in flight has none."""
    monkeypatch.setattr(Lookup, "draft", lambda _, most: [2] * most)
    model = made(2, torch.bfloat16)
    assert model.gpu is not None
    model.gpu.record_graphs(6)
    model.open([Opening(i, [1] * 20, 20, GREEDY) for i in range(2)])
    for i in range(2):
        model.start([Step(i, 0, 20, True, range(i * BLOCKS, (i + 1) * BLOCKS))], ())
    with Operators() as found:
        steps = [Step(i, 20, 1, True, (), drafts=2) for i in range(2)]
        outcome = model.start(steps, ()).result()
    assert not WAITING & set(found.names)
    assert model.gpu.graphs is not None
    assert model.gpu.graphs.replayed == 3
    assert outcome.drafts == {0: Drafts(2, 0)}
    assert outcome.tokens == [[0], [0]]


@pytest.mark.parametrize(
    ("found", "graphs", "told"),
    [
        (Verdict("off", "off"), True, "slower operators, without CUDA graphs: off"),
        (Verdict(graphs="stale"), True, "CUDA graphs are not used: stale"),
        (Verdict(graphs="stale"), False, None),  # they were not asked for
    ],
)
def test_a_loaded_model_says_what_a_failed_check_leaves_unused(
    found: Verdict, graphs: bool, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch)
    config = open_source("embedded", 0).config
    assert isinstance(config, GPTConfig)
    monkeypatch.setattr("model.check", lambda *_: found)
    monkeypatch.setattr("model.load", lambda *_: network(config, torch.float32))
    monkeypatch.setattr(GPT, "to", lambda of, _: of)  # it is there
    asked = LoadOptions("dynamic", "embedded", "cuda", "float32", 0, 8, "16tokens", graphs=graphs)
    unused = load_model(asked).info.unused_gpu
    assert (unused is None) == (told is None)
    assert (told or "") in (unused or "")
