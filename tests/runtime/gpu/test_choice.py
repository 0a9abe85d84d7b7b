"""Which device a model runs on, from facts; and that it has an index wherever torch needs one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from model import LoadOptions, load_model
from models.gpt2 import GPT
from models.part import Part
from runtime.gpu import choice, selfcheck
from runtime.gpu.choice import GPU, DeviceError, Facts, choose, look, resolve_device, runs_on
from tests.runtime.gpu.pretend import pretend_gpus

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # of torch 2.13 for CUDA 13.0
CUDA = Facts(torch="2.13.0+cu130", cuda="13.0", built_for=WHEEL)
H100, V100 = GPU("NVIDIA H100", (9, 0)), GPU("Tesla V100", (7, 0))
OLD_DRIVER = replace(
    CUDA,
    driver="470.223.02",
    complaint="CUDA initialization: The NVIDIA driver on your system is too old (found version "
    "11040)",
)
TWO = replace(CUDA, driver="580.82.07", found=(H100, H100))


@pytest.mark.parametrize(
    ("facts", "unused", "remedy"),
    [
        (
            Facts(torch="2.13.0+cpu", driver="580.82.07"),
            "driver 580.82.07, but torch 2.13.0+cpu is a build without CUDA",
            "install one with CUDA",
        ),
        (
            OLD_DRIVER,
            "driver 470.223.02, but torch 2.13.0+cu130, built for CUDA 13.0, cannot use it (CUDA "
            "initialization: The NVIDIA driver on your system is too old (found version 11040))",
            "install a newer driver, or a build of torch for the driver's CUDA",
        ),
        (
            replace(CUDA, driver="580.82.07", visible="7"),
            "driver 580.82.07, but torch 2.13.0+cu130, built for CUDA 13.0, cannot use it: ",
            "or name another GPU than CUDA_VISIBLE_DEVICES=7",
        ),
        (
            replace(OLD_DRIVER, in_reach=False, complaint=""),
            "driver 470.223.02, but this process may not use it",
            "docker run --gpus all",
        ),
        (
            replace(TWO, found=(V100,)),
            "torch 2.13.0+cu130, built for CUDA 13.0, has no code for Tesla V100 (compute "
            "capability 7.0, driver 580.82.07), only for sm_75 sm_80",
            "install a build of torch that includes this GPU, such as one for an older CUDA",
        ),
        (
            replace(TWO, built_for=("sm_80", "sm_86")),
            "has no code for NVIDIA H100 (compute capability 9.0, driver 580.82.07)",
            "such as one for a newer CUDA",
        ),
    ],
    ids=["build without CUDA", "old driver", "absent index", "container", "old GPU", "new GPU"],
)
def test_a_gpu_that_torch_cannot_use_is_named_with_a_remedy_and_cuda_is_refused(
    facts: Facts, unused: str, remedy: str
) -> None:
    chosen = choose("auto", facts)
    assert chosen.device == torch.device("cpu")
    assert chosen.unused_gpu is not None
    assert unused in chosen.unused_gpu
    assert remedy in chosen.unused_gpu
    with pytest.raises(DeviceError) as refused:
        choose("cuda", facts)
    assert unused in str(refused.value)
    assert "allowed here: auto, cpu" in str(refused.value)


@pytest.mark.parametrize(
    "facts",
    [
        Facts(torch="2.13.0+cpu"),
        CUDA,
        replace(OLD_DRIVER, visible=""),
        replace(CUDA, driver="580.82.07", visible="-1"),
    ],
    ids=["CPU", "no GPU", "hidden", "hidden, too"],
)
def test_auto_says_nothing_where_there_is_no_gpu_or_the_user_excludes_it(facts: Facts) -> None:
    assert choose("auto", facts) == choice.Chosen(torch.device("cpu"), None)
    with pytest.raises(DeviceError, match=r"torch finds no GPU.*; allowed here: auto, cpu"):
        choose("cuda", facts)


@pytest.mark.parametrize(
    ("name", "part", "index"),
    [
        ("auto", Part(), 0),
        ("cuda", Part(), 0),
        ("cuda:1", Part(), 1),
        ("auto", Part(1, 2), 1),
        ("cuda", Part(0, 2), 0),
        ("cuda:0", Part(3, 4), 0),  # a rank on a machine of its own
    ],
)
def test_a_gpu_has_an_index_and_each_rank_its_own(name: str, part: Part, index: int) -> None:
    assert choose(name, TWO, part) == choice.Chosen(torch.device("cuda", index))


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("cuda:2", Part(), "torch finds no such GPU; allowed here: auto, cpu, cuda:0, cuda:1"),
        ("cuda", Part(0, 3), "each of 3 shards needs its own GPU, and torch finds 2"),
        ("auto", Part(2, 3), "allowed here: 2 shards or fewer, --device cpu"),
        ("gpu", Part(), "--device is 'gpu'; allowed: auto, cpu, cuda, cuda:0"),
        ("cuda:", Part(), "--device is 'cuda:'; allowed"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    name: str, part: Part, words: str
) -> None:
    with pytest.raises(DeviceError) as refused:
        choose(name, TWO, part)
    assert words in str(refused.value)


def test_shards_run_on_the_same_kind_of_device_all_or_none() -> None:
    mixed = replace(TWO, found=(H100, V100))
    for rank in range(2):
        chosen = choose("auto", mixed, Part(rank, 2))
        assert chosen.device == torch.device("cpu")
        assert "Tesla V100" in str(chosen.unused_gpu)
    assert choose("auto", mixed).device == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((8, 9), ["sm_80", "sm_90"], True),
        ((8, 0), ["sm_86"], False),
        ((7, 0), WHEEL, False),
        ((7, 5), WHEEL, True),
        ((10, 3), WHEEL, True),
        ((12, 1), ["sm_120a"], True),
        ((12, 0), ["sm_80", "compute_90"], True),
        ((8, 0), ["sm_90", "compute_90"], False),
        ((9, 0), ["gfx90a"], True),
        ((9, 0), [], True),
    ],
)
def test_code_runs_on_later_gpus_of_its_major_version_and_intermediate_code_on_all(
    capability: tuple[int, int], built_for: list[str], runs: bool
) -> None:
    assert runs_on(capability, built_for) is runs


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.223.02  Sat Oct  7 15:39:11 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  470.223.02  Release Build",
    ],
)
def test_the_drivers_version_is_read_from_the_kernel(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 9.4.0\n")
    monkeypatch.setattr(choice, "DRIVER", tmp_path / "version")
    assert look().driver == "470.223.02"


def test_without_the_kernels_word_nvidia_smi_is_asked(
    smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look().driver == "535.104.05"
    smi.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert look().driver is None
    smi.unlink()
    monkeypatch.setenv("PATH", str(smi.parent))
    assert look().driver is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.usefixtures("smi")
def test_a_model_on_the_cpu_says_which_gpu_it_leaves_unused() -> None:
    def loaded(device: str) -> str | None:
        asked = LoadOptions("dynamic", "embedded", device, "float32", 0, 8, kv_memory="16tokens")
        return load_model(asked).info.unused_gpu

    told = "the model runs on a CPU: an NVIDIA GPU is here, driver 535.104.05, but "
    assert str(loaded("auto")).startswith(told)
    assert loaded("cpu") is None


@pytest.mark.parametrize(
    ("value", "hidden"), [("", True), ("-1", True), ("0", False), ("1", False)]
)
def test_a_variable_that_excludes_all_gpus_is_understood(
    value: str, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert look().hidden is hidden


class ReachedError(Exception):
    """The step at which a test ends, since nothing can follow without a GPU."""


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_current_before_the_model_is_moved_to_it(
    name: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = pretend_gpus(monkeypatch)

    def move(_: GPT, to: torch.device) -> None:
        raise ReachedError(to, list(current))

    monkeypatch.setattr(GPT, "to", move)
    with pytest.raises(ReachedError) as reached:
        load_model(LoadOptions("dynamic", "embedded", name, "auto", 0, 8))
    assert reached.value.args == (torch.device("cuda", index), [index])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shard_joins_the_others_on_the_gpu_of_its_rank(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = pretend_gpus(monkeypatch)
    moved: list[torch.device] = []

    def move(network: GPT, to: torch.device) -> GPT:
        moved.append(to)
        return network

    def join(backend: str, **others: Any) -> None:
        raise ReachedError(backend, others["device_id"], list(current), list(moved))

    monkeypatch.setattr(GPT, "to", move)
    monkeypatch.setattr(dist, "init_process_group", join)
    part = Part(rank, 2)
    with pytest.raises(ReachedError) as reached:
        load_model(LoadOptions("dynamic", "embedded", "cuda", "auto", 0, 8, "auto", part, "x:1"))
    gpu = torch.device("cuda", rank)
    assert reached.value.args == ("nccl", gpu, [rank], [gpu])


def test_the_self_check_runs_on_a_gpu_with_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch)

    def reach(index: int) -> None:
        raise ReachedError(index)

    monkeypatch.setattr(torch._C, "_cuda_setDevice", reach)
    arguments = "selfcheck cuda 16 16 64 16 bfloat16"
    monkeypatch.setattr(sys, "argv", arguments.split())
    with pytest.raises(ReachedError) as reached:
        selfcheck.main()
    assert reached.value.args == (0,)


def test_a_cpu_is_a_cpu_whatever_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch)
    assert resolve_device("cpu").device == torch.device("cpu")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An nvidia-smi on a machine whose kernel says nothing of a driver, as in WSL."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 535.104.05\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(choice, "DRIVER", tmp_path / "version")
    return program
