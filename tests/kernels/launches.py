"""Counts launches of Triton kernels under the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from triton.runtime.interpreter import GridExecutor


@contextmanager
def launched() -> Iterator[list[str]]:
    """The names of the kernels, in the order of their launches."""
    names: list[str] = []
    launch = GridExecutor.__call__

    def counting(executor: GridExecutor, *args: object, **kwargs: object) -> None:
        names.append(executor.fn.__name__.lstrip("_"))
        launch(executor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", counting)
        yield names
