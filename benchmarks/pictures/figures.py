"""The moments of measured requests, and what `/stats` makes of them: the picture of
docs/figures.md.

    python -m benchmarks.pictures.figures      # docs/img/figures.png, five seconds

Two bursts of eight requests arrive at a server with four batch slots. The timing of each response
places its moments on the client's clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import requests
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame

LIMIT, BURSTS, APART_S = 4, 2, 0.5
LENGTHS = (20, 90, 40, 60, 30, 100, 20, 50)
QUEUE, PREFILL, DECODE = "#d5d5d5", "#f58518", "#4c78a8"


@dataclass(frozen=True, slots=True)
class Timed:
    """A request by the client's clock, and by the server's timing after its arrival."""

    sent_s: float
    queue_s: float
    ttft_s: float
    latency_s: float


def ask(url: str, tokens: int) -> Timed:
    sent_s = time.perf_counter()
    body = {"prompt": "def main(", "num_tokens": tokens, "seed": 1}
    answer = requests.post(f"{url}/inference", json=body, timeout=60)
    answer.raise_for_status()
    timing = answer.json()["timing"]
    return Timed(sent_s, timing["queue_s"], timing["ttft_s"], timing["latency_s"])


def measure() -> tuple[list[Timed], dict[str, Any]]:
    """The requests, and `/stats` after them."""
    with server("embedded", "float32", LIMIT) as url, ThreadPoolExecutor(len(LENGTHS)) as pool:
        ask(url, 1)
        requests.post(f"{url}/stats/reset", timeout=10).raise_for_status()
        timed: list[Timed] = []
        start_s = time.perf_counter()
        for burst in range(BURSTS):
            time.sleep(max(start_s + burst * APART_S - time.perf_counter(), 0))
            timed += pool.map(lambda tokens: ask(url, tokens), LENGTHS)
        stats: dict[str, Any] = requests.get(f"{url}/stats", timeout=10).json()
    return timed, stats


def title(timed: Sequence[Timed], stats: Mapping[str, Any]) -> str:
    tokens, busy_s = stats["total-tokens-handled"], stats["total-elapsed-time"]
    summed_s = sum(each.latency_s for each in timed)
    return (
        f"throughput: {tokens} tokens / {busy_s:.2f} s busy = {tokens / busy_s:.0f} tokens/s; "
        f"latencies add up to {summed_s:.2f} s"
    )


def draw(timed: Sequence[Timed], stats: Mapping[str, Any], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    origin_s = min(each.sent_s for each in timed)
    for number, each in enumerate(timed, 1):
        left_ms = 1000 * (each.sent_s - origin_s)
        parts = (
            (QUEUE, "queue", each.queue_s),
            (PREFILL, "prefill", each.ttft_s - each.queue_s),
            (DECODE, "decode", each.latency_s - each.ttft_s),
        )
        for colour, name, seconds in parts:
            label = name if number == 1 else None
            axis.barh(number, 1000 * seconds, 0.7, left_ms, color=colour, label=label)
            left_ms += 1000 * seconds
    _spans(axis, timed[-1], len(timed), origin_s)
    axis.margins(x=0.08)
    axis.set_xlim(left=0)
    axis.set_title(title(timed, stats), loc="left", fontsize=10)
    axis.set_ylabel("request")
    axis.set_yticks(range(1, len(timed) + 1, 3))
    axis.set_ylim(len(timed) + 2.8, 0.2)
    axis.set_xlabel(f"milliseconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    axis.set_axisbelow(True)
    axis.legend(loc="lower left", frameon=False, fontsize=9)
    without_frame(axis, "x")
    save(figure, path)


def _spans(axis: Axes, of: Timed, number: int, origin_s: float) -> None:
    """TTFT and E2E of the last request, below it."""
    begin_ms = 1000 * (of.sent_s - origin_s)
    for row, (name, seconds) in enumerate((("TTFT", of.ttft_s), ("E2E", of.latency_s)), 1):
        end_ms = begin_ms + 1000 * seconds
        arrow = {"arrowstyle": "<->", "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (begin_ms, number + row), (end_ms, number + row), arrowprops=arrow)
        axis.text(end_ms, number + row, f" {name} {1000 * seconds:.0f} ms", va="center", fontsize=9)


def main() -> None:
    command(__doc__, lambda folder: draw(*measure(), folder / "figures.png"))


if __name__ == "__main__":
    main()
