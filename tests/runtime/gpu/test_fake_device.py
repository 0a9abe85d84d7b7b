"""Whole iterations on a GPU that is not there: where every tensor lies, what waits for the device,
what is copied, and how many operators are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from model import DynamicBatchingServerModel, LoadOptions, ServerModel, load_model
from models.gpt2 import GPT, GPTConfig
from models.weights.checkpoint import open_source
from requested import Sampling
from runtime.drafting.lookup import Lookup
from runtime.executor import Executor
from runtime.gpu.selfcheck import Verdict
from seams import Drafts, Opening, Step
from tests.runtime.gpu.fake import GPU, Operators, Traffic, fake_gpu, fake_network
from tests.runtime.gpu.pretend import pretend_gpus

CONFIG = GPTConfig(vocab_size=97, context=64, n_layer=2, n_head=2, n_embd=32)
KINDS = (ServerModel, DynamicBatchingServerModel)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = 3  # of each row
PER_LAYER, AROUND, BESIDE_A_GRAPH = 8, 7, 4  # operators of a decode
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item"}
WRONG = Verdict("off by 0.5", "off by 0.5")
GREEDY, DRAWN = Sampling(temperature=0), Sampling()
SETTINGS = {
    "greedy": GREEDY,
    "temperature 1": DRAWN,
    "top_k": Sampling(top_k=5),
    "top_p": Sampling(top_p=0.9),
    "min_p": Sampling(min_p=0.1),
    "typical_p": Sampling(typical_p=0.9),
    "penalties": Sampling(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1),
    "bias": Sampling(logit_bias=((3, 1.0),), min_tokens=2, end_ids=(5,)),
    "logprobs": Sampling(logprobs=3, prompt_logprobs=2),
    "all": Sampling(
        top_k=9, top_p=0.9, min_p=0.1, typical_p=0.9, repetition_penalty=1.2, logprobs=3,
        presence_penalty=0.5, logit_bias=((3, 1.0),), prompt_logprobs=2,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """Two iterations: a prompt of each row, then a token of some."""

    prefill: Operators
    decode: Operators
    traffic: Traffic  # of the decode


def run(
    kind: type[Executor],
    sampling: Sampling,
    *,
    kernel: bool = True,
    dtype: torch.dtype = torch.float32,
    mask: tuple[bool, ...] = (True, True, True),
    layers: int = 1,
    graphs: bool = False,
) -> Run:
    """`mask`: rows that decode. The decode is launched before the prefill is read."""
    rows, prompt = range(len(mask)), 20
    with fake_gpu() as traffic:
        network = fake_network(replace(CONFIG, n_layer=layers), dtype)
        model = kind(network, dtype, "small", kernel=kernel)
        model.allocate(len(rows) * BLOCKS)
        if graphs:
            assert model.gpu is not None
            model.gpu.record_graphs(len(rows))
        model.open([Opening(i, [1] * prompt, prompt, sampling) for i in rows])
        with Operators() as prefill:
            steps = [Step(i, 0, prompt, True, range(i * BLOCKS, (i + 1) * BLOCKS)) for i in rows]
            first = model.start(steps, ())
        traffic.sent = traffic.read = traffic.replayed = 0
        with Operators() as decode:
            held = [] if kind is DynamicBatchingServerModel else [i for i in rows if not mask[i]]
            steps = [Step(i, prompt, 1, True, ()) for i in rows if mask[i]]
            second = model.start([*steps, *(Step(i, prompt, 0, False, ()) for i in held)], ())
        first.result()
        assert sum(map(len, second.result().tokens)) == sum(mask)
    return Run(prefill, decode, traffic)


def check(found: Run) -> None:
    for operators in (found.prefill, found.decode):
        assert not WAITING & set(operators.names)
        tensors = [t for called in operators.called for t in (*called.inputs, *called.outputs)]
        assert {tensor.device for tensor in tensors} == {GPU}
    assert found.traffic.read == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "kernel"), [*((name, True) for name in SETTINGS), ("greedy", False), ("all", False)]
)
def test_an_iteration_stays_on_the_device_and_more_rows_take_no_more_operators(
    kind: type[Executor], name: str, kernel: bool
) -> None:
    """By kernels and by torch's operators, in each type, with all rows and with some."""
    number = list(SETTINGS).index(name)
    few, many = (
        run(
            kind,
            SETTINGS[name],
            kernel=kernel,
            dtype=DTYPES[number % len(DTYPES)],
            mask=tuple(i % 3 < 2 + (number + kernel) % 2 for i in range(rows)),
        )
        for rows in (3, 9)
    )
    for found in (few, many):
        check(found)
    assert many.prefill.names == few.prefill.names
    assert many.decode.names == few.decode.names


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_together_stays_on_the_device_in_every_type(
    kind: type[Executor], dtype: torch.dtype
) -> None:
    check(run(kind, SETTINGS["all"], dtype=dtype))


def test_nothing_is_sorted_at_temperature_1() -> None:
    found = run(DynamicBatchingServerModel, DRAWN)
    assert not {"sort", "topk", "argsort"} & set(found.prefill.names + found.decode.names)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_a_step_has_one_copy_to_the_device_and_one_back(graphs: bool) -> None:
    """A step of the same rows as the step before; staging other rows takes two more copies."""
    for sampling in (GREEDY, SETTINGS["logprobs"]):
        with fake_gpu() as traffic:
            model = DynamicBatchingServerModel(
                fake_network(CONFIG, torch.bfloat16), torch.bfloat16, "small", kernel=True
            )
            model.allocate(4 * BLOCKS)
            if graphs:
                assert model.gpu is not None
                model.gpu.record_graphs(4)
            asked = [sampling, GREEDY, sampling, GREEDY]
            model.open([Opening(i, [1], 1, asked[i]) for i in range(4)])
            model.start([Step(i, 0, 1, True, (i,)) for i in range(4)], ())
            traffic.sent = traffic.read = traffic.replayed = 0
            model.start([Step(i, 1, 1, True, ()) for i in range(4)], ())
            assert (traffic.sent, traffic.read, traffic.replayed) == (1, 1, int(graphs))


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_an_iteration_with_drafts_stays_on_the_device(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row whose token is in flight has none."""
    monkeypatch.setattr(Lookup, "draft", lambda _, most: [2] * most)
    with fake_gpu() as traffic:
        network = fake_network(CONFIG, torch.bfloat16)
        model = DynamicBatchingServerModel(network, torch.bfloat16, "small", kernel=True)
        model.allocate(2 * BLOCKS)
        if graphs:
            assert model.gpu is not None
            model.gpu.record_graphs(6)
        model.open([Opening(i, [1] * 20, 20, GREEDY) for i in range(2)])
        blocks = [range(i * BLOCKS, (i + 1) * BLOCKS) for i in range(2)]
        model.start([Step(0, 0, 20, True, blocks[0])], ()).result()
        model.start([Step(1, 0, 20, True, blocks[1])], ())
        traffic.read = traffic.replayed = 0
        with Operators() as found:
            steps = [Step(i, 20, 1, True, (), drafts=2) for i in range(2)]
            outcome = model.start(steps, ()).result()
        check(Run(found, found, traffic))
        assert traffic.replayed == int(graphs)
    assert outcome.drafts == {0: Drafts(2, 0)}
    assert outcome.tokens == [[0], [0]]


def operators_around(build: Callable[[int], Run]) -> tuple[int, int]:
    """Operators of a decode in each layer, and around the layers."""
    one, two, three = (len(build(layers).decode.names) for layers in (1, 2, 3))
    assert three - two == two - one
    return two - one, one - (two - one)


def test_a_decode_takes_few_operators_a_layer_and_around_them() -> None:
    """Around: two find the tokens in flight, two embeddings, their sum with the first norm, the
    head, and the draw. Beside a graph: two copies to its addresses, the head, and the draw."""
    eager = operators_around(lambda n: run(DynamicBatchingServerModel, GREEDY, layers=n))
    assert eager == (PER_LAYER, AROUND)
    replayed = operators_around(
        lambda n: run(DynamicBatchingServerModel, GREEDY, layers=n, graphs=True)
    )
    assert replayed == (0, BESIDE_A_GRAPH)


def test_a_graph_may_be_recorded() -> None:
    """Run twice, it calls the same operators on the same shapes, nothing waits, and it reads only
    what outlives it or what it computed itself: weights, KV memory and its own buffers."""
    with fake_gpu():
        network = fake_network(CONFIG, torch.bfloat16)
        model = DynamicBatchingServerModel(network, torch.bfloat16, "small", kernel=True)
        model.allocate(BLOCKS)
        assert model.gpu is not None
        model.gpu.record_graphs(3)
        graphs = model.gpu.graphs
        assert graphs is not None
        lasting = [model.pool.keys, graphs._numbers, graphs._newest, graphs._hidden]
        lasting += [graphs._tables.blocks, *network.parameters()]
        for bucket in graphs._fixed:
            runs = []
            for _ in range(2):
                with Operators() as found:
                    graphs._run(bucket)
                runs.append(list(map(str, found.called)))
                assert not WAITING & set(found.names)
                known = {memory_of(tensor) for tensor in lasting}
                for called in found.called:
                    assert {t.device for t in called.inputs + called.outputs} <= {GPU}
                    assert known >= {memory_of(tensor) for tensor in called.inputs}
                    known |= {memory_of(tensor) for tensor in called.outputs}
                assert memory_of(found.called[-1].inputs[0]) == memory_of(graphs._hidden)
            assert runs[0] == runs[1]


def memory_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@pytest.mark.parametrize(
    ("found", "recorded", "graphs", "told"),
    [
        (Verdict(), None, True, None),
        (WRONG, None, True, "slower operators, without CUDA graphs: off by 0.5"),
        (WRONG, None, False, "slower operators, without CUDA graphs: off by 0.5"),
        (Verdict(graphs="stale"), None, True, "CUDA graphs are not used: stale"),
        (Verdict(graphs="stale"), None, False, None),  # they were not asked for
        (Verdict(), "15 new tokens differ", True, "but single launches: 15 new tokens"),
    ],
)
def test_a_loaded_model_says_what_a_failed_check_leaves_unused(
    found: Verdict,
    recorded: str | None,
    graphs: bool,
    told: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_gpus(monkeypatch)
    monkeypatch.setattr("model.check", lambda *_: found)
    monkeypatch.setattr(GPT, "to", lambda network, _: network)  # it is there
    config = open_source("embedded", 0).config
    assert isinstance(config, GPTConfig)
    monkeypatch.setattr("model.load", lambda *_: fake_network(config, torch.float32))
    asked = LoadOptions("dynamic", "embedded", "cuda", "float32", 0, 8, "16tokens", graphs=graphs)
    with fake_gpu(), monkeypatch.context() as patch:
        patch.setattr("runtime.gpu.device.Device._difference", lambda *_: recorded)
        unused = load_model(asked).info.unused_gpu
    assert (unused is None) == (told is None)
    assert (told or "") in (unused or "")
