"""One of two servers behind the router is restarted under load: the picture of docs/deployment.md.

    python -m benchmarks.router.restart      # docs/img/restart.png, a minute

The server gets SIGTERM, as in a rolling update of Kubernetes: it refuses new requests, finishes
what it has accepted, and ends. Its successor starts on the same port.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import ROOT, free_port, server, serving
from benchmarks.pictures.page import command, save, without_frame
from benchmarks.pictures.scrape import Read, reading
from client import client
from client.load.records import Run
from client.report.run import read_run

LIMIT = 16
BEFORE_S = 8.0  # of the load, until the restart
LOAD = (
    "--arrivals", "poisson", "--rate", "4", "--numsamples", "200",
    "--output-tokens", "normal:50,25,1,100",
)  # fmt: skip
COLOURS = ("#4c78a8", "#d55e00")


@dataclass(frozen=True, slots=True)
class Restart:
    """From SIGTERM to the successor's readiness."""

    start_unix_s: float
    end_unix_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    upstreams: tuple[str, ...]  # the first is restarted
    restart: Restart
    reads: Sequence[Read]
    run: Run


def started(port: int) -> AbstractContextManager[str]:
    return server("embedded", "float32", LIMIT, port=port)


def router(upstreams: Sequence[str], *options: str) -> AbstractContextManager[str]:
    port = free_port()
    command = [
        str(ROOT / "server.sh"), "router", "--port", str(port), "--upstreams", ",".join(upstreams),
        "--max-connect-per-upstream", str(LIMIT), "--probe-interval", "1", *options,
    ]  # fmt: skip
    return serving(command, {"PATH": os.environ["PATH"], "EB_PYTHON": sys.executable}, port)


def measure() -> Measured:
    port, other = free_port(), free_port()
    upstreams = tuple(f"http://127.0.0.1:{each}" for each in (port, other))
    first = ExitStack()

    def restart() -> Restart:
        time.sleep(BEFORE_S)
        start_s = time.time()
        first.close()
        first.enter_context(started(port))
        return Restart(start_s, time.time())

    with (
        first,
        started(other),
        router(upstreams) as url,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(1) as pool,
    ):
        first.enter_context(started(port))
        with reading(url) as reads:
            restarted = pool.submit(restart)
            with contextlib.redirect_stdout(io.StringIO()):
                client.main([*LOAD, "--target", f"openai+{url}?model=embedded", "--out", folder])
        return Measured(upstreams, restarted.result(), reads, read_run(Path(folder)).run)


def draw(measured: Measured, path: Path) -> None:
    run = measured.run
    assert run.began_unix_s is not None
    origin_s = run.began_unix_s
    start_s, end_s = (
        at - origin_s for at in (measured.restart.start_unix_s, measured.restart.end_unix_s)
    )
    figure, (flight, first) = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
    for number, upstream in enumerate(measured.upstreams):
        flight.step(
            [one.unix_s - origin_s for one in measured.reads],
            [one.values["eb_router_in_flight", upstream] for one in measured.reads],
            where="post", color=COLOURS[number], label=f"server {number + 1}",
        )  # fmt: skip
    answered = sum(outcome.ok for outcome in run.outcomes)
    flight.set_title(
        f"{answered} of {len(run.outcomes)} requests were answered; shaded: from SIGTERM to "
        f"server 1 until its successor was ready, {end_s - start_s:.0f} s",
        loc="left", fontsize=10,
    )  # fmt: skip
    flight.set_ylabel("requests in flight")
    flight.set_ylim(bottom=0)
    flight.legend(loc="upper right", fontsize=9, frameon=False)
    points = [
        (o.origin_s, 1000 * (o.first_s - o.origin_s)) for o in run.outcomes if o.first_s is not None
    ]
    first.scatter(*zip(*points, strict=True), s=12, color="#009e73")
    first.set_yscale("log")
    first.set_yticks([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1000"])
    first.minorticks_off()
    first.set_ylabel("time to first token, ms")
    first.set_xlabel(f"seconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    first.set_xlim(0, max(outcome.left_s for outcome in run.outcomes))
    for axis in (flight, first):
        axis.axvspan(start_s, end_s, color=COLOURS[0], alpha=0.15, lw=0)
        without_frame(axis)
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "restart.png"))


if __name__ == "__main__":
    main()
