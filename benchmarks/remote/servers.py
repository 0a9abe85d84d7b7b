"""Model servers for measurements: real processes on Unix sockets."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from model_server.config import ServeConfig
from model_server.remote.life import RemoteOptions
from model_server.remote.model import RemoteModel
from model_server.shards import Shards, shards_of
from model_server.supervisor import Supervisor
from model_server.wire.access import Access


@contextlib.contextmanager
def serving(
    model: str, dtype: str, shards: int, max_batch_size: int, patience_s: float
) -> Iterator[tuple[str, Supervisor]]:
    """The address of rank 0, and the supervisor of all."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'model'}"
        config = ServeConfig(
            model=model,
            dtype=dtype,  # type: ignore[arg-type]
            max_batch_size=max_batch_size,
            listen=address,
            shards=shards,
            log_level="error",
        )
        make = partial(shards_of, config, os.environ)
        supervisor = Supervisor([Shards(make, Access(), patience_s).group])
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        try:
            yield address, supervisor
        finally:
            supervisor.stop()
            thread.join()


@contextlib.contextmanager
def connected(
    address: str, model: str, max_batch_size: int, patience_s: float
) -> Iterator[RemoteModel]:
    remote = RemoteModel(
        RemoteOptions(address, Access(), model, "dynamic", max_batch_size, patience_s, 600.0)
    )
    try:
        yield remote
    finally:
        remote.close()
