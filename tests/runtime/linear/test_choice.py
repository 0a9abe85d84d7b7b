"""The choice among variants: kept, believed only where it can be, and possible without kernels."""

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import kernels.choice
import runtime.linear.choice
import runtime.linear.layers
from models.gpt2 import GPT, GPTConfig, init_weights
from runtime.linear.choice import Offer, choose, is_batch_invariant, pack_linears
from runtime.linear.layers import Int8Linear, Precision, variants
from tests.support.forked import Forked
from tests.support.process import free_port

SHAPES = [(32, 48), (32, 96)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.choice, "cache_folder", lambda: tmp_path)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes that are measured, in order."""
    seen: list[tuple[int, int]] = []
    measure = runtime.linear.choice.measure

    def count(precision: Precision, shape: tuple[int, int], tried: list[object]) -> object:
        seen.append(shape)
        return measure(precision, shape, tried)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime.linear.choice, "measure", count)
    return seen


def names(precision: Precision, shapes: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
    return {shape: variant.name for shape, variant in choose(precision, shapes).items()}


def kept_file(folder: Path) -> Path:
    (path,) = folder.glob("choice-*.json")
    return path


def test_a_shape_is_measured_once_and_then_read(
    tmp_path: Path, measured: list[tuple[int, int]]
) -> None:
    first = names("float32", SHAPES[:1] * 3)
    assert measured == SHAPES[:1]
    both = names("float32", SHAPES)
    assert measured == SHAPES, "what is missing in the file is added"
    assert names("float32", SHAPES) == both
    assert both.items() >= first.items()
    assert measured == SHAPES


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"32 x 48": 7}', '{"32 x 48": []}', '{"32 x 48": "of another age"}']
)
def test_an_invalid_file_is_replaced_by_a_new_measurement(
    tmp_path: Path, measured: list[tuple[int, int]], text: str
) -> None:
    wanted = set(names("float32", SHAPES[:1]))
    path = kept_file(tmp_path)
    path.write_text(text)
    assert set(names("float32", SHAPES[:1])) == wanted
    assert measured == SHAPES[:1] * 2
    assert json.loads(path.read_text())["32 x 48"] in {v.name for v in variants("float32")}


@pytest.mark.parametrize("what", ["processor or sources", "threads"])
def test_another_machine_measures_again(
    monkeypatch: pytest.MonkeyPatch, measured: list[tuple[int, int]], what: str
) -> None:
    names("float32", SHAPES[:1])
    if what == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    else:
        monkeypatch.setattr(runtime.linear.choice, "linear_identity", lambda: ("another",))
    names("float32", SHAPES[:1])
    assert measured == SHAPES[:1] * 2


def test_processes_that_start_together_measure_once_and_agree(
    measured: list[tuple[int, int]],
) -> None:
    found: list[dict[tuple[int, int], str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(names("float32", SHAPES))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured == SHAPES
    assert found[0] == found[1] == found[2]


def test_without_a_folder_to_keep_it_the_choice_is_measured_each_time(
    monkeypatch: pytest.MonkeyPatch, measured: list[tuple[int, int]]
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(kernels.choice, "cache_folder", no_home)
    names("float32", SHAPES[:1])
    names("float32", SHAPES[:1])
    assert measured == SHAPES[:1] * 2


def network(precision: Precision) -> GPT:
    made = GPT(GPTConfig(vocab_size=50, context=8, n_layer=1, n_head=2, n_embd=32))
    init_weights(made, 0)
    made.requires_grad_(False)
    if precision == "float32":
        return made
    if precision == "int8":
        for module in list(made.modules()):
            for name, layer in list(module.named_children()):
                if isinstance(layer, nn.Linear):
                    module.set_submodule(name, Int8Linear.of(layer))
    return made.bfloat16()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("ours", [True, False])
def test_a_networks_layers_are_replaced_and_compute_the_same(
    precision: Precision, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ours:  # a machine without a compiler, or without the instructions
        monkeypatch.setattr(runtime.linear.layers, "linear_kernel", lambda _: None)
    made = network(precision)
    layers = {n: getattr(made.blocks[0], n) for n in ("qkv", "attn_proj", "fc", "mlp_proj")}
    layers["head"] = made.head
    kernels = pack_linears(made)
    assert kernels.keys() == {"32 x 96", "32 x 32", "32 x 128", "128 x 32", "32 x 50"}
    if not ours:
        assert {kernel.split()[1] for kernel in kernels.values()} <= {"oneDNN", "torch"}
        assert is_batch_invariant(kernels) == (precision == "int8")
    torch.manual_seed(0)
    for name, linear in layers.items():
        packed: nn.Module = made.head if name == "head" else getattr(made.blocks[0], name)
        x = torch.randn(5, linear.in_features).to(made.wte.weight.dtype)
        tolerance = 1e-5 if precision == "float32" else 2e-2
        assert torch.allclose(packed(x), linear(x), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_for_drafts_layers_are_chosen_among_batch_invariant_variants(
    precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the choice for others, which is kept in another file, stays what it is."""
    if not any(variant.batch_invariant for variant in variants(precision)):
        pytest.skip("there are none here")
    monkeypatch.setattr(runtime.linear.choice, "measure", lambda _, __, tried: tried[-1])
    before = pack_linears(network(precision))
    assert is_batch_invariant(pack_linears(network(precision), invariant=True))
    assert pack_linears(network(precision)) == before
    assert is_batch_invariant(before) == (precision == "int8")


@pytest.mark.long
def test_shards_on_machines_of_different_kinds_take_the_same_kernels(tmp_path: Path) -> None:
    rendezvous = f"127.0.0.1:{free_port()}"
    folders = [tmp_path / f"rank-{rank}" for rank in range(2)]
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    ranks = [
        Forked(
            "tests.runtime.linear.sharing", [str(rank), rendezvous, str(folder)], os.environ, log
        )
        for rank, (folder, log) in enumerate(zip(folders, logs, strict=True))
    ]
    assert [rank.wait(60.0) for rank in ranks] == [0, 0], [log.read_text() for log in logs]
    first, second = (json.loads(log.read_text().splitlines()[-1]) for log in logs)
    assert first == second


@pytest.mark.parametrize(
    ("offers", "common"),
    [
        ([("fma", "fma torch"), ("oneDNN", "fma oneDNN torch")], "fma"),
        ([("amx", "amx fma torch"), ("fma", "fma torch")], "fma"),
        ([("amx", "amx torch"), ("fma", "fma torch")], "torch"),
    ],
)
def test_the_kernel_of_all_is_the_first_choice_that_all_can_run(
    offers: list[tuple[str, str]], common: str
) -> None:
    assert runtime.linear.choice.common([Offer(c, a.split()) for c, a in offers]) == common


def test_torchs_own_layers_are_not_called_batch_invariant() -> None:
    assert not is_batch_invariant({"32 x 48": "float32 torch", "48 x 32": "float32 oneDNN"})
    assert not is_batch_invariant({})
