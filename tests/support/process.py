"""Real server processes for tests: gunicorn over a real socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import requests

from serving.config import Config
from tests.support.forked import Forked

ROOT = Path(__file__).resolve().parent.parent.parent
HASH_APP = "tests.support.hash_app:make_app()"
PATIENCE_S = 60.0  # only a failing test waits so long


T = TypeVar("T")


def eventually(
    holds: Callable[[], T | None], what: str = "what is awaited", within_s: float = PATIENCE_S
) -> T:
    """Polls until it holds, and returns what does; a deadline, not a sleep, decides."""
    deadline_s = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.01)
    return found


C = TypeVar("C")
_opened: list[Any] = []


def closed_at_end(client: C) -> C:
    """Closed when the test ends, if not before. The garbage collector may take a client's sockets
    before the client: their warning then fails whatever test is running."""
    _opened.append(client)
    return client


def connected(server: Server) -> socket.socket:
    address = (server.config.host, server.config.port)
    return closed_at_end(socket.create_connection(address, PATIENCE_S))


def close_all() -> None:
    with contextlib.ExitStack() as stack:
        while _opened:
            stack.callback(_opened.pop(0).close)


@dataclass(slots=True)
class Server:
    config: Config
    process: subprocess.Popen[bytes] | Forked
    log_path: Path

    @property
    def url(self) -> str:
        return self.config.url

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def ask(self, prompt: str = "hello", num_tokens: int = 5, **fields: Any) -> requests.Response:
        body = {"prompt": prompt, "num_tokens": num_tokens, **fields}
        return requests.post(f"{self.url}/inference", json=body, timeout=PATIENCE_S)

    def stats(self) -> dict[str, Any]:
        answer = requests.get(f"{self.url}/stats", timeout=PATIENCE_S)
        assert answer.status_code == 200
        stats: dict[str, Any] = answer.json()
        return stats

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.stats()["counts"]
        return counts

    def reaches(self, **counts: int) -> None:
        """Waits until `/stats` shows these counts."""
        eventually(lambda: counts.items() <= self.counts().items(), f"counts {counts}")

    def health(self) -> int | None:
        """The status of `/health`; None if nothing listens."""
        try:
            return requests.get(f"{self.url}/health", timeout=PATIENCE_S).status_code
        except requests.ConnectionError:
            return None

    def members(self) -> list[int]:
        """Processes of the server that are alive."""
        alive = []
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(ProcessLookupError):
                in_group = os.getpgid(process.pid) == self.process.pid
                if in_group and process.info["status"] != psutil.STATUS_ZOMBIE:
                    alive.append(process.pid)
        return alive

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)


_reserved: list[contextlib.ExitStack] = []


def free_port(width: int = 1) -> int:
    """The first of `width` ports for servers that are still to be started. They stay bound here,
    without a listener, so that the system does not assign them again; servers can still bind them
    with SO_REUSEADDR."""
    while True:
        with contextlib.ExitStack() as tried:
            port = 0
            try:
                for n in range(width):
                    probe = tried.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port + n if n else 0))
                    port = port or probe.getsockname()[1]
            except (OSError, OverflowError):
                continue
            _reserved.append(tried.pop_all())
            return port


def environment(**added: str) -> dict[str, str]:
    ours = (Config.prefix, "HASH_", *(name for o in Config.declared() for name in o.variables))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return {**inherited, **added}


@contextlib.contextmanager
def spawned(
    folder: Path, config: Config, command: Sequence[str], env: Mapping[str, str]
) -> Iterator[Server]:
    """A server in a process group of its own, as a terminal would start it; killed in the end."""
    log_path = folder / f"server-{config.port}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
        )
    with _killed_in_the_end(Server(config, process, log_path)) as server:
        yield server


@contextlib.contextmanager
def _killed_in_the_end(server: Server) -> Iterator[Server]:
    """Without its good manners, which take a second; the tests of its end are others."""
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


@contextlib.contextmanager
def starting(
    folder: Path,
    mode: str = "dynamic",
    hash_model: Mapping[str, object] | None = None,
    app: str = HASH_APP,
    **options: Any,
) -> Iterator[Server]:
    """A server with the hash model, not ready yet. `hash_model`: as `hash_app` has it; `app`: what
    gunicorn loads."""
    options = {"port": free_port(), "data_dir": str(folder / "data"), **options}
    config = Config(mode=mode, **options)  # type: ignore[arg-type]
    env = environment(
        **config.as_environment(), HASH_MODEL=json.dumps(hash_model or {}, default=str)
    )
    arguments = ["-c", str(ROOT / "api/http/gunicorn_conf.py"), app]
    log_path = folder / f"server-{config.port}.log"
    process = Forked("gunicorn", arguments, env, log_path)
    with _killed_in_the_end(Server(config, process, log_path)) as server:
        yield server


def wait_ready(server: Server) -> None:
    def ready() -> bool:
        assert server.process.poll() is None, server.log
        return server.health() == 200

    eventually(ready, "/health 200")


@contextlib.contextmanager
def serving(*args: Any, **options: Any) -> Iterator[Server]:
    """One that is ready."""
    with starting(*args, **options) as server:
        wait_ready(server)
        yield server


def shared(scope: Any = "module", **options: Any) -> Any:
    """A fixture: a server that the tests of a module share."""

    @pytest.fixture(scope=scope)
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        with serving(tmp_path_factory.mktemp("server"), **options) as server:
            yield server

    return server


@contextlib.contextmanager
def clients(number: int) -> Iterator[Callable[..., Future[Any]]]:
    """Runs calls such as `server.ask` side by side."""
    with ThreadPoolExecutor(number) as pool:
        yield pool.submit
