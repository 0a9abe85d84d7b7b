"""The kernels run on the GPU where there is one, and interpreted on a CPU elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def on_device() -> Iterator[None]:
    """Tensors are made there."""
    with DEVICE:
        yield
