"""`python -m model_server`: a model server as a command (`./server.sh model-server`).

The process supervises one process for each shard (`shards.py`). With --rank it is a shard itself,
and another program must supervise it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from model_server.config import DownloadConfig, QuantizeConfig, ServeConfig, read
from model_server.serving.observed import ObservedModel
from model_server.serving.service import (
    ORPHAN_S,
    ModelService,
    ShardService,
    ShardWorker,
    end_with_parent,
    fail,
    serve,
)
from model_server.shards import GRACE_S, shards_here
from model_server.supervisor import Supervisor
from model_server.wire.access import Access
from models.names import local_path
from runtime.grammar.grammars import Grammars
from seams import LoadError
from telemetry.journal import Journal
from telemetry.tracing import start_tracing

RECORD_S = 2.0  # to write the last lines of --record


def main(args: Sequence[str]) -> None:
    config = read(args)
    if isinstance(config, ServeConfig):
        serve_model(config)
    try:
        print(_download(config) if isinstance(config, DownloadConfig) else _quantize(config))
    except LoadError as error:
        sys.exit(f"model-server: {error}")


def serve_model(config: ServeConfig) -> NoReturn:
    """Serves a model, then ends the process."""
    folder = local_path(config.model)
    if folder is not None and folder.exists():  # as in the server: both may start in any folder
        config = replace(config, model=str(folder.resolve()))
    rank = f" rank {config.rank}" if config.shards > 1 and config.rank is not None else ""
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)s{rank} %(name)s: %(message)s",
    )
    try:
        status = watch(config) if config.rank is None else run(config, config.rank)
    except (OSError, LoadError) as error:
        print(f"model-server: {error}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # torch's threads may crash a process during a normal exit


def watch(config: ServeConfig) -> int:
    """Runs all shards on this machine. Raises OSError, LoadError."""
    supervisor = Supervisor([shards_here(config)])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: supervisor.stop())
    if config.end_with_stdin:
        end_with_parent(GRACE_S + ORPHAN_S)
    return supervisor.run()


def run(config: ServeConfig, rank: int) -> int:
    """Runs one shard until it is stopped. Raises OSError, LoadError."""
    access = Access(config.model_token, config.model_tls)
    service = ModelService(
        ShardWorker(),
        config.mode,
        config.max_batch_size,
        config.addresses or [config.listen],
        rank,
        fail,
    )
    if config.end_with_stdin:
        end_with_parent(ORPHAN_S)
    name = f"{config.otlp_service_name}.model-server"
    tracing = start_tracing(config.otlp_endpoint, name)
    journal = None
    if config.record is not None:
        facts = {"model": config.model, "mode": config.mode, "rank": rank}
        journal = Journal(Path(config.record), "model server", facts)

    with contextlib.ExitStack() as ending:

        def loaded() -> ShardService:
            model = load(config, rank)
            if journal is not None:
                journal.start()
                ending.callback(journal.stop, RECORD_S)
            if tracing is None and journal is None:
                return model
            return ObservedModel(model, tracing, journal, rank)

        if tracing is not None:
            ending.callback(tracing.close)
        return serve(service, loaded, config.listen, access)


def load(config: ServeConfig, rank: int) -> ShardService:
    """Raises LoadError."""
    from model import LoadOptions, load_model
    from models.networks import Part
    from text.vocabulary import load_tokenizer

    options = LoadOptions.of(config)
    options = replace(options, part=Part(rank, config.shards), rendezvous=config.rendezvous or "")
    model = load_model(options)
    # read when a sequence first needs it
    vocabulary = partial(load_tokenizer, config.model, config.revision)
    model.grammars = Grammars(vocabulary, timed=rank == 0)
    return model


def _download(config: DownloadConfig) -> str:
    from models.fetch import locate

    return str(locate(config.model, config.revision))


def _quantize(config: QuantizeConfig) -> str:
    from model_server.quantise import quantise

    out = Path(config.output_dir).expanduser()
    made = quantise(config.model, out, config.revision, config.weights)
    return (
        f"{made.bytes / 1e6:.1f} MB of weights instead of {made.bytes_before / 1e6:.1f} MB; serve "
        f"them with --model {made.model}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
