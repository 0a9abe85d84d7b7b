"""Runs a model's shards and the HTTP server in front of them (`model_server/supervisor.py`).

If the model dies, the HTTP server keeps its requests. If the launcher is killed, the HTTP server
drains, and the model works until it has.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from launcher.config import LauncherConfig
from model_server.config import ServeConfig
from model_server.shards import shards_here
from model_server.supervisor import Command, IsReady, ProcessGroup, Supervisor, TakeLine
from seams import LoadError
from serving.config import Config

ROOT = Path(__file__).resolve().parent.parent
NAME = "launcher"
DRAIN_GRACE_S = 25.0  # beyond the server's own drain timeout

log = logging.getLogger(__name__)


def launch(config: LauncherConfig, server: Config) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit status: 1 if nothing could be served."""
    take_line = print_json if server.log_format == "json" else print_plain
    logging.basicConfig(level=logging.INFO, handlers=[LineHandler(NAME, take_line)])
    with tempfile.TemporaryDirectory(prefix="effective-batching-") as folder:
        environment = environment_of(config, server)
        model = model_server(config, server, f"unix:{config.socket or f'{folder}/model'}")
        try:
            shards = shards_here(model, environment)
        except (LoadError, OSError) as error:
            log.error("error: %s", error)
            return 1
        program = http_server(server, model.listen, environment)
        end_within_s = server.drain_timeout + DRAIN_GRACE_S
        supervisor = Supervisor([shards, ProcessGroup(lambda: [program], end_within_s)], take_line)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: supervisor.stop())
        return supervisor.run()


def environment_of(config: LauncherConfig, server: Config) -> dict[str, str]:
    """The environment of all processes."""
    environment = {**os.environ, **server.as_environment(), "PYTHONUNBUFFERED": "1"}
    path = [str(ROOT), environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if config.hub_cache is not None:
        environment["HF_HUB_CACHE"] = config.hub_cache
    return environment


def model_server(config: LauncherConfig, server: Config, address: str) -> ServeConfig:
    """The options of the model server: what they have in common with the server's, and its own."""
    args = ["--listen", address, "--shards", str(config.shards)]
    if config.master_port:
        args += ["--rendezvous", f"{config.master_addr}:{config.master_port}"]
    if server.record:
        args += ["--record", model_record(server.record)]
    return ServeConfig.from_args(args, environment_of(config, server))


def model_record(path: str) -> str:
    """The model server's file beside the server's: each process writes a file of its own."""
    server = Path(path)
    return str(server.with_stem(f"{server.stem}-model"))


def http_server(server: Config, address: str, environment: Mapping[str, str]) -> Command:
    command = [sys.executable, str(ROOT / "app.py"), server.mode, "--remote-model", address]
    probe = probe_of(server.host, server.port)
    return Command("server", command, environment, probe, keeps_others=True)


def probe_of(host: str, port: int) -> Callable[[], contextlib.AbstractContextManager[IsReady]]:
    """Asks the server at this address whether it is ready, and logs each time that it became so."""

    @contextlib.contextmanager
    def probe() -> Iterator[IsReady]:
        was_ready = False

        def is_ready() -> bool:
            nonlocal was_ready
            before, was_ready = was_ready, is_healthy(host, port)
            if was_ready and not before:
                log.info("ready on http://%s:%d", host, port)
            return was_ready

        yield is_ready

    return probe


def is_healthy(host: str, port: int, path: str = "/health") -> bool:
    """Whether a GET returns 200."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(reachable, port, timeout=1.0)
    try:
        connection.request("GET", path, headers={"Host": "localhost"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class LineHandler(logging.Handler):
    """Prints a launcher's own messages like a process's lines."""

    def __init__(self, name: str, take_line: TakeLine) -> None:
        super().__init__()
        self._take_own = functools.partial(take_line, name)

    def emit(self, record: logging.LogRecord) -> None:
        self._take_own(record.getMessage())


def print_plain(name: str, line: str) -> None:
    _print(f"{name} | {line}")


def print_json(name: str, line: str) -> None:
    """Prints one JSON object: the process's own with its name, or one with the plain line."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        fields = {"message": line}
    _print(json.dumps({"process": name, **fields}))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one piece: several threads print
    sys.stdout.flush()
