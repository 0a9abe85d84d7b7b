"""What Prometheus reads from `/metrics` under a bursty load: the picture of docs/metrics.md.

    python -m benchmarks.pictures.metrics      # docs/img/metrics.png, half a minute

A server with the embedded model gets a very bursty load, and its metrics are read four times a
second. The lower panels show queries of the page.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame
from benchmarks.pictures.scrape import Read, reading
from client import client

LIMIT = 16
WINDOW = 4  # reads: the second over which a rate is taken
LOAD = (
    "--arrivals", "plan:high", "--numsamples", "200", "--rate", "10",
    "--output-tokens", "normal:50,25,1,100",
)  # fmt: skip


def measure() -> list[Read]:
    with (
        server("embedded", "float32", LIMIT) as url,
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        reading(url) as reads,
    ):
        if client.main([*LOAD, "--target", url, "--out", folder]):
            raise SystemExit("the client failed")
    return reads


def draw(reads: Sequence[Read], path: Path) -> None:
    at_s = [one.unix_s - reads[0].unix_s for one in reads]

    def values(name: str) -> list[float]:
        return [one.values[name, ""] for one in reads]

    figure, (requests, tokens, memory) = plt.subplots(
        3, 1, figsize=(9, 6), sharex=True, layout="constrained"
    )
    for name, colour in (("tgi_batch_current_size", "#4c78a8"), ("tgi_queue_size", "#d55e00")):
        requests.step(at_s, values(name), where="post", color=colour, label=name)
    requests.set_ylabel("requests")
    requests.legend(loc="upper right", fontsize=9, frameon=False)

    counted = list(zip(at_s, values("eb_generated_tokens_total"), strict=True))
    spans = list(zip(counted, counted[WINDOW:], strict=False))
    tokens.plot(
        [end for _, (end, _) in spans],
        [(after - before) / (end - start) for (start, before), (end, after) in spans],
        color="#009e73",
    )
    tokens.set_ylabel("tokens per second")
    tokens.set_title("rate(eb_generated_tokens_total[1s])", loc="left", fontsize=10)

    used, budget = values("eb_kv_used_tokens"), values("eb_kv_budget_tokens")
    memory.fill_between(
        at_s, [100 * u / b for u, b in zip(used, budget, strict=True)], step="post", color="#9ecae9"
    )
    memory.set_ylabel("percent")
    memory.set_title("eb_kv_used_tokens / eb_kv_budget_tokens", loc="left", fontsize=10)
    memory.set_xlabel(f"seconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    for axis in (requests, tokens, memory):
        axis.set_ylim(bottom=0)
        axis.margins(x=0)
        without_frame(axis)
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "metrics.png"))


if __name__ == "__main__":
    main()
