"""Starts and stops real servers; reads any target's `/stats` and `/health`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import requests

from client.load.dialects import EXTRAS, OpenAI
from client.load.target import Target, authorization, parse_target
from client.workloads.workload_file import Request

ROOT = Path(__file__).resolve().parents[2]
_STOP_S = 20.0
_DYING_S = 5.0
_ANSWER_S = 30.0
FIRST_ANSWER_S = 120.0  # a model's first answer may be slow


class ServerError(RuntimeError):
    """A server that did not come up or does not respond; after the first line the end of its
    log."""


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
    cwd: Path | None = None,
    cores: Collection[int] | None = None,
    port: int | None = None,
) -> Iterator[Server]:
    """Run ``command --port P`` until the block ends; it responds once ``await_health`` has
    returned. Without a ``port``, which the caller keeps free, one is found.

    The server leads a separate process group, so that no process of it survives the block and a
    Ctrl-C in the terminal reaches only the caller. Without `cwd` it runs in the caller's folder, so
    that relative paths among its options mean the same. ``cores`` are those it may run on.
    """
    # it must not run jobs that are stored for the user's own server
    environment = {**os.environ, "DATA_DIR": str(log.parent.resolve() / "jobs")}
    environment.pop("DATABASE_URL", None)
    kept = free_port() if port is None else contextlib.nullcontext(port)
    with kept as port, log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=sink, stderr=subprocess.STDOUT, cwd=cwd, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            if cores is not None:  # long before it has threads or processes of its own
                os.sched_setaffinity(process.pid, cores)
            yield Server(parse_target(f"{name}=http://127.0.0.1:{port}"), process, log)
        finally:
            _stop(process)


@contextlib.contextmanager
def started(
    command: Sequence[str], name: str, log: Path, start_s: float, *, cwd: Path | None = None,
    cores: Collection[int] | None = None,
) -> Iterator[Server]:  # fmt: skip
    """``launched``, but yields when ``/health`` returns 200."""
    with launched(command, name, log, cwd=cwd, cores=cores) as server:
        await_health(server, start_s)
        yield server


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


def stats(target: Target) -> dict[str, Any] | None:
    """``/stats`` of a native target; None if there is none."""
    return _get(target, "/stats") if target.native else None


def iterations(target: Target) -> dict[str, Any] | None:
    """``/stats/iterations`` of a native target; None if it cannot be read."""
    table = (_get(target, "/stats/iterations") if target.native else None) or {}
    columns, lines = table.get("columns"), table.get("iterations")
    if not isinstance(columns, list) or not isinstance(lines, list):
        return None
    whole = all(
        isinstance(line, list)
        and len(line) == len(columns)
        and all(isinstance(value, int | float) for value in line)
        for line in lines
    )
    return table if whole else None


def reset_stats(target: Target) -> None:
    """Begin a new window in ``/stats``; a target without one is left alone."""
    if target.native:
        with contextlib.suppress(requests.RequestException):
            requests.post(f"{target.url}/stats/reset", headers=authorization(), timeout=30)


def settled_stats(target: Target, wait_s: float = 10.0) -> dict[str, Any] | None:
    """``/stats`` once no request waits or runs, so that a cut run does not affect the next."""
    give_up = time.monotonic() + wait_s
    while True:
        answer = stats(target)
        counts = (answer or {}).get("counts")
        busy = isinstance(counts, dict) and (counts.get("waiting") or counts.get("running"))
        if answer is None or not busy or time.monotonic() > give_up:
            return answer
        time.sleep(0.05)


def handled(stats: dict[str, Any] | None) -> int | None:
    """Tokens counted by the server; None if it does not say."""
    tokens = (stats or {}).get("total-tokens-handled")
    return tokens if type(tokens) is int else None


def described(stats: dict[str, Any] | None) -> str | None:
    """The server's description of itself: mode, policy, model with its note, hardware."""
    if not stats:
        return None
    model, machine = (_dict(stats, key) for key in ("model", "machine"))
    parts = [f"mode {stats['mode']}"] if "mode" in stats else []
    if (policy := stats.get("policy")) not in (None, stats.get("mode")):
        parts.append(f"policy {policy}")
    caches = _dict(stats, "options").get("prefix_caching")
    if stats.get("mode") == "dynamic" and caches is not None:
        parts.append(f"prefix caching {'on' if caches else 'off'}")
    if "name" in model:
        parts.append(f"model {model['name']}, {model.get('dtype', 'unknown')}")
        parts += [str(model["note"])] if model.get("note") else []
    if "cpu" in machine:
        parts.append(
            f"on {machine.get('gpu') or 'no GPU'}, {machine['cpu']}, {machine.get('cores')} cores"
        )
    return ", ".join(parts) or None


def note_of(stats: dict[str, Any] | None) -> str | None:
    """A model's remark at its start, such as that its weights are random."""
    model = _dict(stats or {}, "model")
    return f"Model {model.get('name')}: {model['note']}" if model.get("note") else None


def _dict(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def adapted(target: Target, timeout_s: float = FIRST_ANSWER_S) -> Target:
    """The target with streaming, and with responses of the requested length, counted token by
    token, if the server can. Raises ServerError if it does not respond."""
    if target.native:
        return replace(target, stream=streams(target, timeout_s))
    silence = unreachable(target)
    if silence is not None:
        raise ServerError(silence)
    return with_extras(target, timeout_s)


def streams(target: Target, timeout_s: float) -> bool:
    """Whether a native target can stream: it refuses the field by name otherwise.

    Raises ServerError if it does not respond, or not like this project's servers.
    """
    body = {"prompt": "a", "num_tokens": 1, "stream": True, "temperature": 0}
    try:
        with requests.post(
            f"{target.url}/inference", json=body, headers=authorization(), timeout=timeout_s,
            stream=True,
        ) as answer:  # fmt: skip
            kind = answer.headers.get("Content-Type", "nothing").partition(";")[0]
            if answer.status_code == 200 and kind == "text/event-stream":
                return True
            text = answer.raw.read(300, decode_content=True).decode(errors="replace")
            refused = answer.status_code in (400, 422) and re.search(r"\bstream\b", text)
            if kind == "application/json" and (refused or answer.status_code == 200):
                return False
    except (requests.RequestException, OSError) as error:
        raise ServerError(f"{target.url} does not respond: {cause(error)}") from None
    raise ServerError(
        f"{target.url}/inference responded to the first request with HTTP {answer.status_code} and "
        f"{kind}, instead of tokens: {' '.join(text.split())}"
    )


def with_extras(target: Target, timeout_s: float) -> Target:
    """An OpenAI target with the extras that it accepts, tried one at a time."""
    if not isinstance(target.dialect, OpenAI):
        return target
    one = Request(0.0, "a", 1, 1, "immediate", None, 0)
    known = []
    for extra in EXTRAS:
        dialect = replace(target.dialect, extras=(extra,))
        try:
            answer = requests.post(
                target.url + dialect.path(stream=True), json=dialect.body(one, stream=True),
                headers=authorization(), timeout=timeout_s,
            )  # fmt: skip
        except (requests.RequestException, OSError) as error:
            raise ServerError(f"{target.url} does not respond: {cause(error)}") from None
        known += [extra] if answer.status_code == 200 and "error" not in answer.text else []
    return replace(target, dialect=replace(target.dialect, extras=tuple(known)))


def _get(target: Target, path: str) -> dict[str, Any] | None:
    try:
        answer = requests.get(target.url + path, headers=authorization(), timeout=30)
        data = answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
