"""Streams of OpenAI's client, begun one after the other: the picture of docs/openai.md.

    python -m benchmarks.pictures.streams      # docs/img/openai.png, ten seconds

Six chat completions are streamed by one client. Each event is a dot at the time at which the
client received it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from openai import AsyncOpenAI

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame

LIMIT = 16
TOKENS = (100, 80, 15, 60, 60, 30)  # of each response
APART_S = 0.08
WAIT, FIRST, NEXT = "#b0b0b0", "#d55e00", "#4c78a8"


@dataclass(frozen=True, slots=True)
class Stream:
    """``events_s``: when the client received each event that has text."""

    sent_s: float
    events_s: tuple[float, ...]

    @property
    def first_ms(self) -> float:
        return 1000 * (self.events_s[0] - self.sent_s)


async def stream(client: AsyncOpenAI, tokens: int) -> Stream:
    sent_s = time.perf_counter()
    chunks = await client.chat.completions.create(
        model="embedded",
        messages=[{"role": "user", "content": "Sort a list."}],
        max_tokens=tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    events_s = [
        time.perf_counter()
        async for chunk in chunks
        if chunk.choices and chunk.choices[0].delta.content
    ]
    return Stream(sent_s, tuple(events_s))


async def streams(url: str) -> list[Stream]:
    async def later(number: int, tokens: int) -> Stream:
        await asyncio.sleep(number * APART_S)
        return await stream(client, tokens)

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        await stream(client, 1)  # imports and connects
        return await asyncio.gather(*(later(*each) for each in enumerate(TOKENS)))


def measure() -> list[Stream]:
    with server("embedded", "float32", LIMIT) as url:
        return asyncio.run(streams(url))


def draw(measured: Sequence[Stream], path: Path) -> None:
    origin_s = measured[0].sent_s
    figure, axis = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for number, each in enumerate(measured, 1):
        sent_ms, first_ms, *later_ms = (
            1000 * (at_s - origin_s) for at_s in (each.sent_s, *each.events_s)
        )
        axis.plot([sent_ms, first_ms], [number, number], color=WAIT, linewidth=3, zorder=1)
        axis.scatter(later_ms, [number] * len(later_ms), s=7, color=NEXT, linewidths=0)
        axis.scatter(first_ms, number, s=36, color=FIRST, linewidths=0, zorder=3)
    axis.plot([], [], color=WAIT, linewidth=3, label="sent, no event yet")
    axis.scatter([], [], s=36, color=FIRST, linewidths=0, label="first event")
    axis.scatter([], [], s=7, color=NEXT, linewidths=0, label="each later event")
    axis.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9,
        borderaxespad=0.2,
    )  # fmt: skip
    waits_ms = [each.first_ms for each in measured]
    axis.set_title(
        f"first event after {min(waits_ms):.0f} to {max(waits_ms):.0f} ms", loc="left", fontsize=10
    )
    axis.set_yticks(range(1, len(measured) + 1))
    axis.invert_yaxis()
    axis.set_ylabel("stream")
    axis.set_xlim(left=-10)
    axis.set_xlabel(f"milliseconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    without_frame(axis, "x")
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw(measure(), folder / "openai.png"))


if __name__ == "__main__":
    main()
