"""`python -m model_server`: a model server as a command (`./server.sh model-server`).

The process supervises one process for each shard (`group.py`). With --rank it is a shard itself,
and another program must supervise it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from loading import LoadError, load_local_model
from model_server.config import DownloadConfig, QuantizeConfig, ServeConfig, read
from model_server.group import GRACE_S, Group, Shard, address_of, cores_each
from model_server.serving.process import ORPHAN_S, end_with_parent, fail, serve
from model_server.serving.recorded import RecordedModel
from model_server.serving.service import ModelService, ServedModel
from model_server.serving.traced import TracedModel
from model_server.serving.worker import Worker
from model_server.wire.access import Access, AccessError
from telemetry.journal import Journal, check_writable
from telemetry.tracing import start_tracing
from text.tokenizer import folder_of

ROOT = Path(__file__).resolve().parent.parent
RECORD_S = 2.0  # to write the last lines of --record


def main(args: Sequence[str]) -> None:
    match config := read(args):
        case DownloadConfig():
            download(config)
        case QuantizeConfig():
            quantize(config)
        case ServeConfig():
            serve_model(config)


def serve_model(config: ServeConfig) -> NoReturn:
    """Serves a model, then ends the process."""
    config = replace(config, model=named(config.model))
    rank = f" rank {config.rank}" if config.shards > 1 and config.rank is not None else ""
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s %(levelname)s{rank} %(name)s: %(message)s",
    )
    try:
        status = watch(config) if config.rank is None else run(config, config.rank)
    except (AccessError, OSError, LoadError) as error:
        print(f"model-server: {error}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    os._exit(status)  # torch's threads may crash a process during a normal exit


def named(model: str) -> str:
    """The absolute path of a folder, as in the server, so that both may start in any folder. Other
    names are unchanged."""
    folder = folder_of(model)
    return model if folder is None or not folder.is_dir() else str(folder.resolve())


def watch(config: ServeConfig) -> int:
    """Runs all shards on this machine. Raises AccessError."""
    access = Access(config.model_token, config.model_tls)
    access.check(config.listen)
    for rank in range(config.shards):
        if config.record is not None:
            check_writable(record_of(config.record, rank))
    group = Group(lambda kv_tokens: shards_of(config, kv_tokens), access, config.model_patience)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: group.stop())
    if config.end_with_stdin:
        end_with_parent(GRACE_S + ORPHAN_S)
    return group.run()


def shards_of(config: ServeConfig, kv_tokens: int | None = None) -> list[Shard]:
    """How to start the shards. They meet at a new port each time, unless one is given. `kv_tokens`:
    the KV memory of the previous shards, which these must have too."""
    addresses = [address_of(config.listen, rank) for rank in range(config.shards)]
    rendezvous = config.rendezvous or f"127.0.0.1:{free_port()}"
    made = []
    for rank, listen in enumerate(addresses):
        own = replace(
            config,
            rank=rank,
            listen=listen,
            end_with_stdin=True,
            addresses=config.addresses or tuple(addresses),
            rendezvous=rendezvous,
            record=None if config.record is None else record_of(config.record, rank),
            kv_memory=config.kv_memory if kv_tokens is None else f"{kv_tokens}tokens",
        )
        environment = {**os.environ, **own.as_environment()}
        environment["PYTHONPATH"] = str(ROOT)
        if config.shards > 1:
            environment.setdefault("OMP_NUM_THREADS", cores_each(config.shards))
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        made.append(Shard([sys.executable, "-P", "-m", "model_server"], environment, listen))
    return made


def record_of(path: str, rank: int) -> str:
    """The file that a shard writes. As with --listen, further shards write beside the first."""
    return f"{path}-{rank}" if rank else path


def run(config: ServeConfig, rank: int) -> int:
    """Runs one shard until it is stopped. Raises AccessError, OSError, LoadError."""
    access = Access(config.model_token, config.model_tls)
    service = ModelService(
        Worker(),
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

        def loaded() -> ServedModel:
            model = load(config, rank)
            if tracing is not None:
                model = TracedModel(model, tracing, rank)
            if journal is None:
                return model
            journal.start()
            ending.callback(journal.stop, RECORD_S)
            return RecordedModel(model, journal)

        if tracing is not None:
            ending.callback(tracing.close)
        return serve(service, loaded, config.listen, access)


def load(config: ServeConfig, rank: int) -> ServedModel:
    """Raises LoadError."""
    from models.part import Part

    return load_local_model(config, Part(rank, config.shards), config.rendezvous)


def download(config: DownloadConfig) -> None:
    from models.weights.checkpoint import CheckpointError, find_folder

    try:
        print(find_folder(config.model, config.revision))
    except CheckpointError as error:
        sys.exit(f"model-server: {error}")


def quantize(config: QuantizeConfig) -> None:
    from model_server.quantise import quantise
    from models.weights.checkpoint import CheckpointError

    out = Path(config.output_dir).expanduser()
    try:
        before, after = (size / 1e6 for size in quantise(config.model, out, config.revision))
    except CheckpointError as error:
        sys.exit(f"model-server: {error}")
    print(f"{after:.1f} MB of weights instead of {before:.1f} MB; serve them with --model {out}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main(sys.argv[1:])
