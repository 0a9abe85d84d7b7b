"""The cost of a viewer of the live page: CPU time of the engine's thread for the same requests.

    python -m benchmarks.watching            # embedded model, five pairs

A server serves the same burst repeatedly, in turn with a viewer of `/watch/events`, without one,
and with one that never reads. CPU time depends little on other work on the machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import requests

ROOT = Path(__file__).resolve().parent.parent
REQUESTS, TOKENS = 96, 100
PATIENCE_S = 120.0


@contextlib.contextmanager
def server(port: int) -> Iterator[tuple[str, int]]:
    """Its address and the process that serves."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "app.py", "dynamic", "--port", str(port), "--data-dir", folder]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            give_up = time.monotonic() + PATIENCE_S
            while time.monotonic() < give_up:
                with contextlib.suppress(requests.ConnectionError):
                    if requests.get(f"{url}/health", timeout=5).status_code == 200:
                        break
                time.sleep(0.1)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield url, int(children.split()[0])
        finally:
            process.terminate()
            process.wait()


def busiest_thread(pid: int) -> tuple[str, float]:
    """The engine's, and its CPU time in s."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[task.name] = (int(fields[11]) + int(fields[12])) * tick_s
    return max(found.items(), key=lambda item: item[1])


def burst(url: str) -> None:
    body = {"requests": [{"prompt": "for i in range(", "num_tokens": TOKENS}] * REQUESTS}
    done = requests.get(f"{url}/stats", timeout=PATIENCE_S).json()["counts"]["completed"]
    requests.post(f"{url}/watch/play", json=body, timeout=PATIENCE_S).raise_for_status()
    while True:
        counts = requests.get(f"{url}/stats", timeout=PATIENCE_S).json()["counts"]
        if counts["completed"] >= done + REQUESTS:
            return
        time.sleep(0.2)


@contextlib.contextmanager
def reader(url: str) -> Iterator[None]:
    with requests.get(f"{url}/watch/events", stream=True, timeout=PATIENCE_S) as answer:

        def read() -> None:
            with contextlib.suppress(Exception):  # the end of the stream
                for _ in answer.iter_content(65536):
                    pass

        threading.Thread(target=read, daemon=True).start()
        yield


@contextlib.contextmanager
def staller(url: str) -> Iterator[None]:
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port)) as sock:
        sock.sendall(b"GET /watch/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield


@contextlib.contextmanager
def none(_: str) -> Iterator[None]:
    yield


CASES = {"none": none, "reader": reader, "stalled": staller}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8599, help="default: %(default)s")
    args = parser.parse_args()
    spent: dict[str, list[float]] = {name: [] for name in CASES}
    with server(args.port) as (url, pid):
        burst(url)
        for turn in range(args.pairs):
            for name in list(CASES)[:: 1 if turn % 2 else -1]:
                with CASES[name](url):
                    before_s = busiest_thread(pid)[1]
                    burst(url)
                    spent[name].append(busiest_thread(pid)[1] - before_s)
    tokens = REQUESTS * TOKENS
    told = {}
    for name, seconds in spent.items():
        ratios = [s / base for s, base in zip(seconds, spent["none"], strict=True)]
        told[name] = statistics.median(ratios)
        print(
            f"{name:8} {statistics.median(seconds) / tokens * 1e6:7.1f} us a token, "
            f"{told[name]:.3f} times that without viewers [{min(ratios):.3f}, {max(ratios):.3f}]"
        )
    print(json.dumps(told))


if __name__ == "__main__":
    main()
