"""What it saves to choose the server by a prompt's beginning: the picture of docs/router.md.

    python -m benchmarks.router.prefix      # docs/img/router.png, a minute

Chats with ten long system prompts go through the router to two servers, each with KV memory for six
of these prompts. Under both policies the same chats arrive at the same times.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from openai import AsyncOpenAI

from benchmarks.common import cpu_name
from benchmarks.http.__main__ import server
from benchmarks.pictures.page import command, save, without_frame
from benchmarks.router.restart import COLOURS, LIMIT, router

POLICIES = ("least-work", "prefix")
CHATS, RATE, SYSTEMS, SYSTEM_CHARACTERS = 60, 4.0, 10, 1800
OPTIONS = ("--prefix-caching", "true", "--kv-memory", "3600tokens")


@dataclass(frozen=True, slots=True)
class Chat:
    """``server`` is its number in the router's list; ``ttft_s`` lasts until the first text."""

    at_s: float
    system: int
    server: int
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


async def chat(
    client: AsyncOpenAI, upstreams: Sequence[str], system: int, question: str, origin_s: float
) -> Chat:
    start, source = system * SYSTEM_CHARACTERS, inspect.getsource(random)
    sent_s = time.perf_counter()
    chunks = await client.chat.completions.create(
        model="embedded",
        messages=[
            {"role": "system", "content": source[start : start + SYSTEM_CHARACTERS]},
            {"role": "user", "content": question},
        ],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    first_s = None
    async for chunk in chunks:
        if first_s is None and chunk.choices and chunk.choices[0].delta.content:
            first_s = time.perf_counter()
    assert first_s is not None
    usage = chunk.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return Chat(
        sent_s - origin_s,
        system,
        upstreams.index(chunks.response.headers["x-upstream-origin"]),
        first_s - sent_s,
        usage.prompt_tokens,
        usage.prompt_tokens_details.cached_tokens or 0,
    )


async def chats(url: str, upstreams: Sequence[str]) -> list[Chat]:
    rng = random.Random(2)
    work = [
        (at_s, rng.randrange(SYSTEMS), f"What does line {number} do?")
        for number, at_s in enumerate(accumulate(rng.expovariate(RATE) for _ in range(CHATS)))
    ]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        await client.models.list()  # connects
        origin_s = time.perf_counter()

        async def at(at_s: float, system: int, question: str) -> Chat:
            await asyncio.sleep(origin_s + at_s - time.perf_counter())
            return await chat(client, upstreams, system, question, origin_s)

        return await asyncio.gather(*(at(*each) for each in work))


def measure(policy: str) -> list[Chat]:
    with (
        server("embedded", "float32", LIMIT, *OPTIONS) as first,
        server("embedded", "float32", LIMIT, *OPTIONS) as second,
        router((first, second), "--policy", policy) as url,
    ):
        return asyncio.run(chats(url, (first, second)))


def draw(measured: Sequence[Sequence[Chat]], path: Path) -> None:
    figure, axes = plt.subplots(
        len(measured), 1, figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    for axis, policy, played in zip(axes, POLICIES, measured, strict=True):
        for each in played:
            colour, cached = COLOURS[each.server], each.cached_tokens > each.prompt_tokens / 2
            face = colour if cached else "white"
            axis.scatter(each.at_s, each.system + 1, s=36, color=face, edgecolors=colour)
        share = sum(c.cached_tokens for c in played) / sum(c.prompt_tokens for c in played)
        axis.set_title(
            f"{policy}: {share:.0%} of the prompts' tokens were cached, median TTFT "
            f"{1000 * median(c.ttft_s for c in played):.0f} ms",
            loc="left", fontsize=10,
        )  # fmt: skip
        axis.set_ylabel("system prompt")
        axis.set_yticks(range(1, SYSTEMS + 1))
        without_frame(axis)
        axis.set_axisbelow(True)
    figure.legend(
        handles=[
            Line2D(
                [], [], color=colour, mfc=face, marker="o", linestyle="",
                label=f"server {number}, prompt {how}",
            )
            for number, colour in enumerate(COLOURS, 1)
            for how, face in (("cached", colour), ("computed", "white"))
        ],
        loc="outside lower center", ncols=4, frameon=False, fontsize=9, columnspacing=1.2,
    )  # fmt: skip
    axes[-1].set_xlabel(f"seconds; embedded model, batch limit {LIMIT}, {cpu_name()}")
    save(figure, path)


def main() -> None:
    command(__doc__, lambda folder: draw([measure(p) for p in POLICIES], folder / "router.png"))


if __name__ == "__main__":
    main()
