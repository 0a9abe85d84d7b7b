"""GPUs as far as torch says which there are; nothing can be computed on them."""

from __future__ import annotations

import pytest
import torch


def pretend_gpus(
    monkeypatch: pytest.MonkeyPatch, count: int = 2, capability: tuple[int, int] = (7, 5)
) -> list[int]:
    """Returns the list to which the index of each GPU is added that is made the current one. How
    torch reads the name of a device stays as it is. GPUs of the default `capability` compare
    nothing, since they do not use the kernel."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", current.append, raising=False)
    return current
