"""The work through the server: streams over loopback, all sent at once, against the bare loop.

    python -m benchmarks.http --streams 512                      # random:gpt2
    python -m benchmarks.http --streams 512 --model embedded     # what HTTP itself sustains

Every stream is counted to its end; it is lost if it breaks off or has a different number of tokens
than requested. The bare loop does the same work, in turns with the server over three rounds. The
client runs on the same machine in a separate process.
"""

from __future__ import annotations

import argparse
import gc
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.alternate import ROUNDS, in_turns, ratio
from benchmarks.common import Job, machine, offline_work, run_bare, save
from benchmarks.http.client import Received
from model import DTYPES, LoadOptions, load_model
from scheduling.policies.orca import Orca
from text.tokenizer import Tokenizer
from text.vocabulary import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 300


def text_work(model: str) -> list[tuple[str, Job]]:
    """The work of `offline_work` with the same lengths and prompts cut from a real text."""
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
def server(
    model: str, dtype: str, limit: int, *options: str, port: int | None = None
) -> Iterator[str]:
    """`./server.sh dynamic` on this port or a free one; its URL."""
    port = port or free_port()
    command = [
        str(ROOT / "server.sh"), "dynamic", "--port", str(port), "--model", model,
        "--dtype", dtype, "--max-batch-size", str(limit), "--prefix-caching", "false",
        *options,
    ]  # fmt: skip
    # the user's environment must not change the measured server
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("EB_") and name != "API_KEY"
    }
    with serving(command, environment | {"EB_PYTHON": sys.executable}, port) as url:
        yield url


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str], port: int) -> Iterator[str]:
    """A server while it runs, healthy; its URL. Raises RuntimeError when it does not start."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
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
        started = [] if process.poll() is not None else psutil.Process(process.pid).children(True)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        psutil.wait_procs(started, 60)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def stream_all(url: str, model: str, work: Sequence[tuple[str | list[int], int]]) -> Received:
    """(prompt, output tokens) each as a stream, by a client in a separate process."""
    bodies = [
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for prompt, tokens in work
    ]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.http.client"],
        input=json.dumps({"url": f"{url}/v1/completions", "bodies": bodies}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Received(**json.loads(result.stdout))


def run_http(model: str, dtype: str, limit: int) -> tuple[int, float]:
    """(output tokens, seconds) of 64 concurrent streams of texts."""
    with server(model, dtype, limit) as url:
        work = [(text, job.output_tokens) for text, job in text_work(model)]
        received = stream_all(url, model, work)
    if received.lost:
        raise RuntimeError(f"{received.lost} streams are lost, the first: {received.first_loss}")
    return received.tokens, received.seconds


@dataclass(frozen=True, slots=True)
class Bare:
    """The loop without HTTP."""

    tokens: int
    seconds: float


def bare(model: str, dtype: str, work: Sequence[Job], limit: int) -> Bare:
    loaded = load_model(LoadOptions("dynamic", model, "auto", dtype, 0, limit))
    loaded.warm_up()
    run = run_bare(loaded, Orca(), "dynamic", work, limit)
    del loaded
    gc.collect()  # frees its memory before the server starts
    return Bare(sum(record.generated for record in run.tally.requests), run.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=512, help="default: %(default)s")
    parser.add_argument("--limit", type=int, help="batch limit (default: as many as streams)")
    parser.add_argument("--model", default="random:gpt2", help="default: %(default)s")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    args = parser.parse_args()

    limit = args.limit or args.streams
    work = offline_work(load_tokenizer(args.model).vocab_size, args.streams)
    bodies: list[tuple[str | list[int], int]] = [(job.prompt, job.output_tokens) for job in work]

    def over_http() -> Received:
        with server(args.model, args.dtype, limit) as url:
            return stream_all(url, args.model, bodies)

    loops: list[Bare] = []
    streams: list[Received] = []
    in_turns(
        {
            "bare": lambda: loops.append(bare(args.model, args.dtype, work, limit)),
            "http": lambda: streams.append(over_http()),
        },
        args.rounds,
    )
    ratios = ratio([s.tokens / s.seconds for s in streams], [b.tokens / b.seconds for b in loops])
    where = machine()
    rows = [
        f"| bare loop | {len(work)} | - | {b.tokens} | {b.tokens / b.seconds:.0f} | - |"
        for b in loops
    ]
    rows += [
        f"| over HTTP | {s.streams} | {s.lost} | {s.tokens} | {s.tokens / s.seconds:.0f} "
        f"| {s.events / s.seconds:.0f} |"
        for s in streams
    ]
    card = [
        f"{args.model} in {args.dtype}, batch limit {limit}; {where.cpu}, {where.cores} cores",
        "",
        "| | streams | lost | tokens | output tokens/s | token events/s |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"over HTTP / bare loop: {ratios}",
    ]
    report = {
        "model": args.model,
        "dtype": args.dtype,
        "limit": limit,
        "bare": [asdict(b) for b in loops],
        "http": [asdict(s) for s in streams],
        "http_to_bare": asdict(ratios),
    }
    save(report, "\n".join(card), args.out, f"streams-{args.model.replace(':', '-')}")


if __name__ == "__main__":
    main()
