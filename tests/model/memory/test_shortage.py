"""What a model does without memory for an iteration, or without its device: it says so, and
continues with the others where it can. What CUDA does once an error sticks is played.

Messages are those of reports on public trackers, cut where they name places of the build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from generate.modes import LayOut, padded, ragged
from model import LoadOptions, load_model
from model_server.config import ServeConfig
from runtime.iteration import with_our_errors
from seams import DeviceLostError, DeviceMemoryError, LoadError
from serving.config import Config
from tests.bare import Bare
from tests.model.peer import load
from tests.models.families import logits_of

CPU = torch.device("cpu")
LAYOUTS: dict[str, LayOut] = {"static": padded, "dynamic": ragged}


@pytest.mark.parametrize("mode", LAYOUTS)
def test_without_memory_an_iteration_fails_as_one_that_may_fit_later_and_harms_no_other(
    mode: str, checkpoint: tuple[Path, Any]
) -> None:
    folder, peer = checkpoint
    model = load(folder, mode)
    bare = Bare(model, LAYOUTS[mode])
    (fine,) = bare.open([[5, 7, 11]], 4)
    bare.advance([fine])
    (large,) = bare.open([[1, 2]], 4)
    greedy = model.network.register_forward_pre_hook(lambda *_: torch.empty(2**55))
    with pytest.raises(DeviceMemoryError, match="memory"):
        bare.advance([large])
    greedy.remove()
    bare.released.append(large.id)
    for _ in range(2):
        text = list(fine.ids)
        assert bare.advance([fine]).tokens == [[int(logits_of(peer, text)[-1].argmax())]]


@pytest.mark.parametrize("config", [Config, ServeConfig], ids=["server", "model server"])
def test_a_model_without_memory_for_its_pool_is_not_served(
    config: type[Config | ServeConfig],
) -> None:
    with pytest.raises(LoadError, match="a smaller --kv-memory"):
        load_model(LoadOptions.of(config(mode="dynamic", device="cpu", kv_memory="999999999GiB")))


@dataclass
class Failing:
    error: Exception
    device: torch.device = CPU

    @with_our_errors
    def iterate(self) -> None:
        raise self.error


def test_the_error_keeps_no_tensor_of_the_failed_iteration() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        Failing(torch.OutOfMemoryError("no memory")).iterate()
    assert caught.value.__cause__ is caught.value.__context__ is None
    frames, traceback = [], caught.value.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert "iterate" not in frames


NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, unhandled cuda "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\nncclUnhandledCudaError: "
    "Call to CUDA function failed.\nLast error:\n"
)
SHORT_OF_MEMORY = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 7.45 GiB. GPU 0 has a total capacity of 14.56 GiB"
    ),
    torch.AcceleratorError(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    torch.distributed.DistBackendError(f"{NCCL}Cuda failure 2 'out of memory'"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 36028797018963968 bytes. Error code 12 (Cannot allocate memory)"
    ),
]
OTHER = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    torch.distributed.DistBackendError(f"{NCCL}Cuda failure 999 'unknown error'"),
]


@pytest.mark.parametrize("error", [*SHORT_OF_MEMORY, *OTHER])
def test_a_lack_of_memory_is_seen_in_the_words_of_every_library_and_nowhere_else(
    error: Exception,
) -> None:
    with pytest.raises(Exception, match=re.escape(str(error))) as caught:
        Failing(error).iterate()
    assert isinstance(caught.value, DeviceMemoryError) == (error in SHORT_OF_MEMORY)


ASSERTED = torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")


def test_an_error_that_sticks_is_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    synchronized = []

    def synchronize(device: torch.device) -> None:
        synchronized.append(device)
        raise ASSERTED

    gpu = torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(DeviceLostError, match=r"^CUDA error: device-side assert triggered$"):
        Failing(ASSERTED, gpu).iterate()
    assert synchronized == [gpu]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)  # the device works
    with pytest.raises(torch.AcceleratorError):
        Failing(ASSERTED, gpu).iterate()
