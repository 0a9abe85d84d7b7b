"""The work through the server: 64 streams over loopback, all sent at once, against the bare loop.

The same texts for both, since HTTP carries text: the bare loop is given their token ids. The
client runs on the machine's own cores, in a process of its own, as a user's would.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.common import Job, offline_work
from text import Tokenizer, load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 300


def text_work(model: str) -> list[tuple[str, Job]]:
    """The work of `offline_work` with its lengths kept and its prompts cut out of a real text."""
    tokenizer = load_tokenizer(model)
    source = textwrap.dedent(inspect.getsource(random))
    lines = [line for line in source.splitlines() if len(line) > 20]
    return [
        (text, Job(tokenizer.encode(text), job.output_tokens))
        for i, job in enumerate(offline_work(tokenizer.vocab_size))
        for text in [_text_of_length(tokenizer, "\n".join(lines[i:]), len(job.prompt))]
    ]


def _text_of_length(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The longest beginning of `text` that encodes to at most `tokens` tokens."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.encode(text[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low]


@contextmanager
def server(model: str, dtype: str, limit: int) -> Iterator[str]:
    """`./server.sh dynamic` on a free port; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(ROOT / "server.sh"), "dynamic", "--port", str(port), "--model", model,
        "--dtype", dtype, "--max-batch-size", str(limit),
    ]  # fmt: skip
    # what the user's shell says of servers must not change the one that is measured
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EB_") and name != "API_KEY"
    }
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment | {"EB_PYTHON": sys.executable},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the server did not start: {' '.join(command)}")
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def _load(url: str, bodies: list[dict[str, object]]) -> tuple[int, float]:
    async def one(session: aiohttp.ClientSession, body: dict[str, object]) -> int:
        tokens = 0
        async with session.post(f"{url}/inference", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(event["error"])
                    tokens += event.get("tokens", 0)
        return tokens

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        start_s = time.perf_counter()
        counts = await asyncio.gather(*(one(session, body) for body in bodies))
        return sum(counts), time.perf_counter() - start_s


def run_http(model: str, dtype: str, limit: int) -> tuple[int, float]:
    """(output tokens, seconds) of 64 concurrent streams, by a client in a process of its own."""
    with server(model, dtype, limit) as url:
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.http", url, model],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    tokens, seconds = json.loads(result.stdout.splitlines()[-1])
    return tokens, seconds


def main() -> None:
    """The client's process: loads the server at argv[1] and prints [tokens, seconds]."""
    url, model = sys.argv[1:]
    bodies: list[dict[str, object]] = [
        {"prompt": text, "num_tokens": job.output_tokens, "temperature": 0, "stream": True}
        for text, job in text_work(model)
    ]
    print(json.dumps(asyncio.run(_load(url, bodies))))


if __name__ == "__main__":
    main()
