"""torch's errors as the engine sees them. No GPU is needed: what CUDA does once an error sticks is
played, since nothing else than a new process could undo it."""

from __future__ import annotations

import pytest
import torch

from runtime.errors import with_our_errors
from seams import DeviceLostError, DeviceMemoryError


class Raising:
    """An object with a device, whose iteration raises."""

    def __init__(self, device: str, error: Exception) -> None:
        self.device = torch.device(device)
        self.error = error

    @with_our_errors
    def iterate(self) -> None:
        raise self.error


ASSERTED = torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with ...")


def test_an_error_that_sticks_is_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    synchronized = []

    def synchronize(device: torch.device) -> None:
        synchronized.append(device)
        raise ASSERTED

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(DeviceLostError, match=r"^CUDA error: device-side assert triggered$"):
        Raising("cuda:1", ASSERTED).iterate()
    assert synchronized == [torch.device("cuda:1")]


def test_an_error_after_which_the_device_works_is_raised_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    with pytest.raises(RuntimeError, match="invalid argument") as caught:
        Raising("cuda", RuntimeError("CUDA error: invalid argument")).iterate()
    assert not isinstance(caught.value, DeviceLostError)
    with pytest.raises(DeviceMemoryError):
        Raising("cuda", torch.OutOfMemoryError("no memory")).iterate()


def test_no_error_on_a_cpu_is_a_lost_device() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        Raising("cpu", RuntimeError("shapes do not match")).iterate()
