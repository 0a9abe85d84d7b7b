"""The same twenty tokens by each API, whole and streamed: the picture of docs/apis.md.

    python -m benchmarks.pictures.apis      # docs/img/apis.png, half a minute

One request at a time; the paths take turns. Time is the client's, from sending to the last byte.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
import requests
from matplotlib import pyplot as plt

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame

TOKENS, ROUNDS = 20, 40
WHOLE, STREAMED = "#4c78a8", "#72b7b2"
_TEXT = "for i in range("
_INFERENCE = {"prompt": _TEXT, "num_tokens": TOKENS, "temperature": 0}
_OPENAI = {
    "model": "embedded", "prompt": _TEXT, "max_tokens": TOKENS, "min_tokens": TOKENS,
    "temperature": 0,
}  # fmt: skip
_TGI = {"inputs": _TEXT, "parameters": {"max_new_tokens": TOKENS, "details": True}}


@dataclass(frozen=True, slots=True)
class Call:
    path: str
    streamed: bool
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        stream = " (stream)" if self.streamed and not self.path.endswith("stream") else ""
        return self.path + stream


CALLS = (
    Call("/inference", False, _INFERENCE),
    Call("/inference", True, _INFERENCE | {"stream": True}),
    Call("/v1/completions", False, _OPENAI),
    Call("/v1/completions", True, _OPENAI | {"stream": True}),
    Call("/generate", False, _TGI),
    Call("/generate_stream", True, _TGI),
)


@dataclass(frozen=True, slots=True)
class Taken:
    seconds: float
    bytes: int  # of the body of the response


def ask(session: requests.Session, url: str, call: Call) -> Taken:
    start_s = time.perf_counter()
    with session.post(url + call.path, json=call.body, timeout=60, stream=True) as answer:
        answer.raise_for_status()
        size = sum(len(part) for part in answer.iter_content(None))
    return Taken(time.perf_counter() - start_s, size)


def measure() -> list[list[Taken]]:
    """For each of CALLS."""
    with server("embedded", "float32", 4) as url, requests.Session() as session:
        rounds = [[ask(session, url, call) for call in CALLS] for _ in range(ROUNDS + 1)]
    return [list(of_call) for of_call in zip(*rounds[1:], strict=True)]


def draw(taken: Sequence[Sequence[Taken]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(9, 3.4), layout="constrained")
    middles = []
    for place, (call, of_call) in enumerate(zip(CALLS, taken, strict=True)):
        low_ms, middle_ms, high_ms = np.percentile(
            [1000 * each.seconds for each in of_call], (10, 50, 90)
        )
        axis.barh(
            place, middle_ms, 0.65, color=STREAMED if call.streamed else WHOLE,
            xerr=[[middle_ms - low_ms], [high_ms - middle_ms]], capsize=3,
        )  # fmt: skip
        size = median(each.bytes for each in of_call)
        axis.text(1, place, f"{size:,.0f} bytes", va="center", color="white", fontsize=9)
        middles.append(middle_ms)
    axis.set_yticks(range(len(CALLS)), [call.name for call in CALLS])
    axis.invert_yaxis()
    axis.set_title(
        f"{TOKENS} tokens: medians from {min(middles):.0f} to {max(middles):.0f} ms; "
        "whiskers: 10 % to 90 % of the requests",
        loc="left", fontsize=10,
    )  # fmt: skip
    axis.set_xlabel(f"milliseconds; embedded model, one request at a time, {cpu_name()}")
    axis.set_axisbelow(True)
    without_frame(axis, "x")
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "apis.png"))


if __name__ == "__main__":
    main()
