"""A server that the tests of this folder share; they leave it idle."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from serving.config import Config
from tests.support.hash_app import STEP_S
from tests.support.process import (
    ROOT,
    Server,
    environment,
    free_port,
    serving,
    spawned,
    wait_ready,
)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), hash_model={STEP_S: 0.01}) as server:
        yield server


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the embedded model's weights."""
    folder = tmp_path_factory.mktemp("embedded")
    config = Config(mode="dynamic", port=free_port(), data_dir=str(folder / "data"))
    gunicorn = [sys.executable, "-m", "gunicorn", "-c", str(ROOT / "api/http/gunicorn_conf.py")]
    env = environment(**config.as_environment())
    with spawned(folder, config, [*gunicorn, "app:create_app()"], env) as server:
        wait_ready(server)
        yield server
