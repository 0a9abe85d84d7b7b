"""Which device a model runs on, from facts; and that it has an index wherever torch needs one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from model import LoadOptions, load_model
from models.gpt2 import GPT
from models.networks import Part
from runtime.gpu import choice
from runtime.gpu.choice import GPU, DeviceFacts, choose, look
from seams import LoadError
from tests.runtime.gpu.pretend import pretend_gpus

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")  # of torch 2.13 for CUDA 13.0
CUDA = DeviceFacts(torch="2.13.0+cu130", cuda="13.0", built_for=WHEEL)
H100, V100 = GPU("NVIDIA H100", (9, 0)), GPU("Tesla V100", (7, 0))
TOO_OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)"
OLD_DRIVER = replace(CUDA, driver="470.223.02", complaint=TOO_OLD)
TWO = replace(CUDA, driver="580.82.07", found=(H100, H100))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (DeviceFacts(torch="2.13.0+cpu", driver="580"), "torch 2.13.0+cpu is a build without CUDA"),
        (OLD_DRIVER, f"cannot use it ({TOO_OLD}): install a newer driver, or a build of torch"),
        (replace(CUDA, driver="580", visible="7"), "another GPU than CUDA_VISIBLE_DEVICES=7"),
        (replace(OLD_DRIVER, in_reach=False), "this process may not use it: a container needs"),
        (replace(TWO, found=(V100,)), "no code for Tesla V100 (compute capability 7.0, driver"),
        (replace(TWO, built_for=("sm_80",)), "such as one for a newer CUDA"),
        # nothing, where there is no GPU or the user excludes it
        (DeviceFacts(torch="2.13.0+cpu"), None),
        (CUDA, None),
        (replace(OLD_DRIVER, visible=""), None),
    ],
    ids=["build without CUDA", "old driver", "absent index", "container", "old GPU", "new GPU",
         "CPU", "no GPU", "hidden"],
)  # fmt: skip
def test_a_gpu_that_torch_cannot_use_is_named_with_a_remedy_and_cuda_is_refused(
    facts: DeviceFacts, told: str | None
) -> None:
    chosen = choose("auto", facts)
    assert chosen.device == torch.device("cpu")
    assert (chosen.unused_gpu is None) == (told is None)
    with pytest.raises(LoadError, match=r"; allowed here: auto, cpu$") as refused:
        choose("cuda", facts)
    for words in (chosen.unused_gpu or "", str(refused.value)):
        assert (told or "") in words


@pytest.mark.parametrize(
    ("name", "part", "found"),
    [
        ("cpu", Part(), "cpu"),
        ("auto", Part(), "cuda:0"),
        ("cuda:1", Part(), "cuda:1"),
        ("auto", Part(1, 2), "cuda:1"),
        ("cuda", Part(0, 2), "cuda:0"),
        ("cuda:0", Part(3, 4), "cuda:0"),  # a rank on a machine of its own
        ("cuda:2", Part(), "torch finds no such GPU; allowed here: auto, cpu, cuda:0, cuda:1"),
        ("auto", Part(2, 3), "each of 3 shards needs its own GPU, and torch finds 2"),
        ("cuda:", Part(), "--device is 'cuda:'; allowed: auto, cpu, cuda, cuda:0"),
    ],
)
def test_a_gpu_has_an_index_and_each_rank_its_own_and_others_are_refused(
    name: str, part: Part, found: str
) -> None:
    if " " not in found:
        assert choose(name, TWO, part) == choice.Chosen(torch.device(found))
        return
    with pytest.raises(LoadError) as refused:
        choose(name, TWO, part)
    assert found in str(refused.value)


def test_shards_run_on_the_same_kind_of_device_all_or_none() -> None:
    mixed = replace(TWO, found=(H100, V100))
    for rank in range(2):
        chosen = choose("auto", mixed, Part(rank, 2))
        assert chosen.device == torch.device("cpu")
        assert "Tesla V100" in str(chosen.unused_gpu)
    assert choose("auto", mixed).device == torch.device("cuda", 0)


def test_the_drivers_version_is_read_from_the_kernel_or_else_nvidia_smi_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel says nothing of a driver in WSL."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(choice, "DRIVER", tmp_path / "version")
    for kind in ("x86_64 Kernel Module", "Open Kernel Module for x86_64"):
        line = f"NVRM version: NVIDIA UNIX {kind}  470.223.02  Sat Oct  7 15:39:11 UTC 2023"
        choice.DRIVER.write_text(f"{line}\nGCC version:  gcc version 9.4.0\n")
        assert look().driver == "470.223.02"
    choice.DRIVER.unlink()
    smi = tmp_path / "nvidia-smi"
    smi.touch(mode=0o755)
    for script, found in (("echo 535.104.05", "535.104.05"), ("echo it has failed; exit 9", None)):
        smi.write_text(f"#!/bin/sh\n{script}\n")
        assert look().driver == found


class ReachedError(Exception):
    """The step at which a test ends, since nothing can follow without a GPU."""


def test_a_gpu_is_current_before_a_model_is_moved_to_it_and_joins_its_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = pretend_gpus(monkeypatch)
    gpu, part = torch.device("cuda", 1), Part(1, 2)

    def move(network: GPT, to: torch.device) -> GPT:
        assert (to, current) == (gpu, [1])
        return network

    def join(backend: str, **others: Any) -> None:
        raise ReachedError(backend, others["device_id"])

    monkeypatch.setattr(GPT, "to", move)
    monkeypatch.setattr(dist, "init_process_group", join)
    with pytest.raises(ReachedError) as reached:
        load_model(LoadOptions("dynamic", "embedded", "cuda", "auto", 0, 8, "auto", part, "x:1"))
    assert reached.value.args == ("nccl", gpu)
