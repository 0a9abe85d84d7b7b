"""The kernels run on the GPU where there is one, and interpreted on a CPU elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def on_device() -> Iterator[None]:
    """Tensors are made there."""
    with DEVICE:
        yield


@contextmanager
def launched() -> Iterator[list[str]]:
    """The names of the Triton kernels, in the order of their launches by the interpreter."""
    names: list[str] = []
    launch = GridExecutor.__call__

    def counting(executor: GridExecutor, *args: object, **kwargs: object) -> None:
        names.append(executor.fn.__name__.lstrip("_"))
        launch(executor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", counting)
        yield names
