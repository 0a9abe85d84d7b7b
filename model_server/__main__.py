"""`python -m model_server`: a model server as a command (`./server.sh model-server`)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from model_server.config import DownloadConfig, ServeConfig
from model_server.serving.process import serve
from model_server.serving.service import ModelService, ServedModel
from model_server.serving.worker import Worker
from model_server.wire.access import Access, AccessError


class LoadError(Exception):
    """The model cannot be served; the message says why and what is allowed."""


def main(args: Sequence[str]) -> None:
    match args:
        case ["download-weights", *rest]:
            download(DownloadConfig.from_args(rest))
        case ["serve", model, *rest] if not model.startswith("-"):
            run(ServeConfig.from_args(["--model", model, *rest]))
        case ["serve", *rest] | [*rest]:
            run(ServeConfig.from_args(rest))


def run(config: ServeConfig) -> None:
    """Until it is told to end; ends the process."""
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    access = Access(config.model_token, config.model_tls)
    service = ModelService(Worker(), config.mode, config.max_batch_size, [config.listen], 0)

    try:
        status = serve(service, lambda: load(config), config.listen, access)
    except (AccessError, OSError, LoadError) as error:
        print(f"model-server: {error}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # torch's threads may crash a process that is being taken down


def load(config: ServeConfig) -> ServedModel:
    """Raises LoadError."""
    from gpt.budget import KVMemoryError
    from gpt.checkpoint import CheckpointError
    from model import LoadOptions, load_model

    try:
        return load_model(
            LoadOptions(
                mode=config.mode,
                model=config.model,
                device=config.device,
                dtype=config.dtype,
                seed=config.seed,
                max_batch_size=config.max_batch_size,
                kv_memory=config.kv_memory,
            )
        )
    except (CheckpointError, KVMemoryError) as error:
        raise LoadError(str(error)) from error


def download(config: DownloadConfig) -> None:
    from gpt.checkpoint import CheckpointError, find_folder

    try:
        print(find_folder(config.model))
    except CheckpointError as error:
        sys.exit(f"model-server: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
