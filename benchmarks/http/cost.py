"""The CPU time of a streamed token in the server's process, by thread, with a model that computes
nothing.

    python -m benchmarks.http.cost                     # 64 and 256 streams, some seconds each
    python -m benchmarks.http.cost --rate 60000

An iteration takes as long as a model would that yields `--rate` tokens a second. If the process
cannot follow, several tokens share an event: then the column `events` is below 1. The client runs
in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.request
from typing import Any

from flask import Flask, jsonify

from app import create_app
from benchmarks.harness.report import here, options, save, table
from benchmarks.harness.servers import serving
from benchmarks.http.streams import stream_all
from benchmarks.no_model import NoModel
from client.load.servers.processes import free_port
from serving.config import Config

TOKENS = 400  # of each stream
RATE = "COST_RATE"  # variable of the server's process
THREADS = ("engine", "writer")  # by name; all others count together
COLUMNS = (*THREADS, "others", "all")


def make_app() -> Flask:
    """For gunicorn: a server that also returns the CPU seconds of its threads."""
    app = create_app(load=lambda config: NoModel(1 << 16, 1 << 20, float(os.environ[RATE])))

    @app.get("/cpu")
    def cpu() -> Any:
        clocks = {t.name: time.pthread_getcpuclockid(t.ident or 0) for t in threading.enumerate()}
        of_threads = {name: time.clock_gettime(clocks[name]) for name in THREADS}
        return jsonify(of_threads | {"all": time.process_time()})

    return app


def measure(streams: int, rate: float) -> tuple[int, float, float, dict[str, float]]:
    """Streams, tokens a second, events for each token, and the us that each took, by thread."""
    program = "import sys; from gunicorn.app.wsgiapp import run; del sys.argv[-2:]; run()"
    command = [sys.executable, "-c", program, "-c", "api/http/gunicorn_conf.py"]
    work = [([1, 2], TOKENS)] * streams
    with free_port() as port:
        asked = ["dynamic", "--port", str(port), "--model", "embedded", "--policy", "orca"]
        config = Config.from_args([*asked, "--max-batch-size", str(streams)])
        own = {**config.as_environment(), RATE: str(rate)}
        with serving([*command, "benchmarks.http.cost:make_app()"], own, port=port) as url:
            stream_all(url, "embedded", work[:2])
            before = _seconds(url)
            received = stream_all(url, "embedded", work)
            after = _seconds(url)
    took = {name: 1e6 * (after[name] - before[name]) / received.tokens for name in after}
    took["others"] = took["all"] - sum(took[name] for name in THREADS)
    return streams, received.tokens / received.seconds, received.events / received.tokens, took


def _seconds(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/cpu") as answer:
        told: dict[str, float] = json.load(answer)
    return told


def main() -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rate", type=float, default=30_000, help="default: %(default)s")
    args = parser.parse_args()
    found = [measure(streams, args.rate) for streams in args.streams]
    rows = [
        (streams, f"{speed:.0f}", f"{events:.2f}", *(f"{took[name]:.1f}" for name in COLUMNS))
        for streams, speed, events, took in found
    ]
    head = f"us of CPU a streamed token, {TOKENS} tokens a stream; {here()}"
    shown = table("streams: | tokens/s: | events | engine: | writer: | others: | all:", rows)
    save({"rate": args.rate, "results": found}, f"{head}\n\n{shown}", args.out, "cost")


if __name__ == "__main__":
    main()
