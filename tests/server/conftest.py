"""A server that the tests of this folder share; they leave it idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hash_app import STEP_S
from tests.support.process import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A collector of traces that is not there harms no request."""
    folder, gone = tmp_path_factory.mktemp("server"), "http://127.0.0.1:9"
    with serving(folder, hash_model={STEP_S: 0.01}, otlp_endpoint=gone) as server:
        yield server


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the embedded model's weights."""
    with serving(tmp_path_factory.mktemp("embedded"), app="app:create_app()") as server:
        yield server
