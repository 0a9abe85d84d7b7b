"""Where the headers of TGI's `/generate` say that time went: the picture of docs/tgi.md.

    python -m benchmarks.pictures.tgi      # docs/img/tgi.png, ten seconds

Twenty-four requests arrive faster than a small batch takes them. The headers of each response say
how long it waited and how long it ran; the client's own clock says when the response arrived.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
import requests
from matplotlib import pyplot as plt

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame

LIMIT, REQUESTS, APART_S = 4, 24, 0.01
SPANS = {"x-queue-time": "#d5d5d5", "x-inference-time": "#4c78a8"}


@dataclass(frozen=True, slots=True)
class Answered:
    """``headers_ms`` in the order of SPANS; the others are of the client's clock."""

    sent_s: float
    received_s: float
    headers_ms: tuple[int, ...]

    @property
    def outside_ms(self) -> float:
        """What no span counts: connecting, HTTP, validation."""
        return 1000 * (self.received_s - self.sent_s) - sum(self.headers_ms)


def ask(url: str, tokens: int) -> Answered:
    body = {"inputs": "def main(", "parameters": {"max_new_tokens": tokens}}
    sent_s = time.perf_counter()
    answer = requests.post(f"{url}/generate", json=body, timeout=60)
    received_s = time.perf_counter()
    answer.raise_for_status()
    return Answered(sent_s, received_s, tuple(int(answer.headers[name]) for name in SPANS))


def measure() -> list[Answered]:
    rng = random.Random(3)
    lengths = [rng.randint(10, 100) for _ in range(REQUESTS)]
    with (
        server("embedded", "float32", LIMIT) as url,
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        ask(url, 1)
        asked = []
        for tokens in lengths:
            asked.append(pool.submit(ask, url, tokens))
            time.sleep(rng.expovariate(1 / APART_S))
        return [each.result() for each in asked]


def draw(answered: Sequence[Answered], path: Path) -> None:
    origin_s = answered[0].sent_s
    figure, axis = plt.subplots(figsize=(9, 4.6), layout="constrained")
    lefts_ms = [1000 * (each.sent_s - origin_s) for each in answered]
    numbers = range(1, len(answered) + 1)
    for span, (name, colour) in enumerate(SPANS.items()):
        widths_ms = [each.headers_ms[span] for each in answered]
        axis.barh(numbers, widths_ms, left=lefts_ms, color=colour, height=0.7, label=name)
        lefts_ms = [left + width for left, width in zip(lefts_ms, widths_ms, strict=True)]
    (received,) = axis.plot(
        [1000 * (each.received_s - origin_s) for each in answered], numbers, "|", color="black",
        markersize=8, label="received by the client",
    )  # fmt: skip
    handles, _ = axis.get_legend_handles_labels()
    axis.legend(
        handles=[handle for handle in handles if handle is not received] + [received],
        loc="lower left", frameon=False, fontsize=9,
    )  # fmt: skip
    outside_ms = median(each.outside_ms for each in answered)
    axis.set_title(
        f"the headers account for all but {outside_ms:.0f} ms (median) of the client's wait",
        loc="left", fontsize=10,
    )  # fmt: skip
    axis.set_ylabel("request")
    axis.set_yticks(range(1, len(answered) + 1, 4))
    axis.set_ylim(len(answered) + 0.8, 0.2)
    axis.set_xlabel(f"milliseconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    axis.set_axisbelow(True)
    without_frame(axis, "x")
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "tgi.png"))


if __name__ == "__main__":
    main()
