"""The systems that are measured: modes of our server, which are started and stopped here, and
servers that already run. Says whether one responds."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import requests

from client.load.http.target import Target, parse_target
from client.load.machine import ROOT

MODES = ("nobatch", "static", "dynamic")
NO_WAIT = "static:nowait"  # static batching with --max-wait-ms 0
COMPARED = ("nobatch", "static", NO_WAIT, "dynamic")
_STOP_S = 20.0
_DYING_S = 5.0
_ANSWER_S = 30.0


class ServerError(RuntimeError):
    """A server that did not come up or does not respond; after the first line the end of its
    log."""


@dataclass(frozen=True, slots=True)
class System:
    """A mode of our server (``command`` starts it) or a server that already runs (``target``).

    ``beside``: it is shown beside that system, at a single load, with which the other keeps up.
    """

    name: str
    command: tuple[str, ...] | None
    target: Target | None = None
    beside: str | None = None


def server_command(
    mode: str, model: str, options: Sequence[str], *, prefix_caching: bool = False
) -> tuple[str, ...]:
    """How one of our modes is started; ``dynamic:tgi`` is the dynamic mode under that policy, and
    ``static:nowait`` starts a batch at once. Without prefix caching a comparison is of scheduling
    alone; the other modes have none."""
    name, _, policy = mode.partition(":")
    chosen: tuple[str, ...] = ()
    if name == "dynamic":
        chosen += ("--policy", policy) if policy else ()
        chosen += ("--prefix-caching", str(prefix_caching).lower())
    chosen += (*options, *(("--max-wait-ms", "0") if mode == NO_WAIT else ()))
    return (str(ROOT / "server.sh"), name, "--model", model, *chosen)


@dataclass(frozen=True, slots=True)
class Server:
    """A target, and its process if we started it."""

    target: Target
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def memory_bytes(self) -> int:
        """Of its processes, if we started it."""
        if self.process is None:
            return 0
        found = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self.process.pid)
            for process in (whole, *whole.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += process.memory_info().rss
        return found

    def failure(self) -> str | None:
        """None while it responds; otherwise what is known about its end, and the end of its log."""
        silence = unreachable(self.target)
        if silence is None:
            return None
        if self.process is None or self.log is None:
            return silence
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_DYING_S)  # the socket closes before the process is gone
        code = self.process.returncode
        ended = silence if code is None else f"its process ended with status {code}"
        return ended + _end_of(self.log)


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """A port for a server that is started in the block. It stays bound here, without a listener, so
    that the system does not assign it again; a server can still bind it with SO_REUSEADDR."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def end_as_ctrl_c() -> None:
    """SIGTERM and a closed terminal interrupt like Ctrl-C, since servers started here are in
    separate sessions and would stay. `nohup` is respected."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def launched(
    command: Sequence[str],
    name: str,
    log: Path,
    *,
    cores: Collection[int] | None = None,
    port: int | None = None,
) -> Iterator[Server]:
    """Run ``command --port P`` until the block ends; it responds once ``await_health`` has
    returned. Without a ``port``, which the caller keeps free, one is found.

    The server leads a separate process group, so that no process of it survives the block and a
    Ctrl-C in the terminal reaches only the caller. It runs in the caller's folder, so that relative
    paths among its options mean the same. ``cores`` are those it may run on.
    """
    # it must not run jobs that are stored for the user's own server
    environment = {**os.environ, "DATA_DIR": str(log.parent.resolve() / "jobs")}
    environment.pop("DATABASE_URL", None)
    kept = free_port() if port is None else contextlib.nullcontext(port)
    with kept as port, log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=sink, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            if cores is not None:  # long before it has threads or processes of its own
                os.sched_setaffinity(process.pid, cores)
            yield Server(parse_target(f"{name}=http://127.0.0.1:{port}"), process, log)
        finally:
            _stop(process)


def await_health(server: Server, start_s: float) -> None:
    """Waits until ``/health`` returns 200; not at all for a server that was not started here.

    Raises ServerError if it ends before, or is not ready after ``start_s``.
    """
    process, log, target = server.process, server.log, server.target
    if process is None or log is None:
        return
    give_up = time.monotonic() + start_s
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise ServerError(
                f"{target.name}: the server ended with status {process.returncode} before it was "
                f"ready{_end_of(log)}"
            )
        try:
            if requests.get(f"{target.url}/health", timeout=5).status_code == 200:
                return
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise ServerError(f"{target.name}: not ready after {start_s:.0f} s (--start-s){_end_of(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, which drains. The rest of the group is killed after a while, or at an
    interrupt (a terminal that closes sends SIGHUP twice)."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_of(log: Path, lines: int = 15) -> str:
    tail = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(("; the end of its log:", *(tail or ["(nothing)"])))


def unreachable(target: Target) -> str | None:
    """None if it responds: ``/health`` of a native target, the open port of others."""
    try:
        if not target.native:
            parts = urlsplit(target.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((str(parts.hostname), port), _ANSWER_S).close()
            return None
        status = requests.get(f"{target.url}/health", timeout=_ANSWER_S).status_code
    except (requests.RequestException, OSError) as error:
        return f"{target.url} does not respond: {cause(error)}"
    return None if status == 200 else f"{target.url}/health returns {status}"


def cause(error: Exception) -> str:
    """The cause of an error, which requests wraps three times."""
    inner = getattr(error.args[0] if error.args else None, "reason", None)
    return str(inner or error).rpartition("): ")[2]
