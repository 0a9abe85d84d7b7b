"""An hour of mixed traffic while upstreams die, freeze and return: the router's memory does not
grow. `SOAK_S=600 ./test.sh --long tests/router/http/test_soak.py` takes ten minutes instead."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from statistics import median

import aiohttp
import psutil
import pytest

from tests.router.conftest import Net
from tests.router.http.test_chaos import Victim, client, disasters
from tests.support.process import closed_at_end, eventually

SOAK_S = float(os.environ.get("SOAK_S", "3600"))
SETTLED_S = min(300.0, SOAK_S / 4)
EVERY_S = SOAK_S / 240
CLIENTS = 12
CURVE = Path("build/soak/router.csv")  # the last one


def memory(supervisor: psutil.Process) -> int:
    """Of the workers, in bytes."""
    return sum(one.memory_info().rss for one in supervisor.children())


async def leavers(url: str, over: asyncio.Event, rng: random.Random) -> None:
    """Clients that leave in the middle, send what is refused, and large bodies."""
    async with aiohttp.ClientSession() as session:
        while not over.is_set():
            kind = rng.choice(["leaves", "refused", "large"])
            body = {"model": "m", "prompt": "x" * (500_000 if kind == "large" else 1)}
            body["stream"] = kind == "leaves"  # type: ignore[assignment]
            if kind == "refused":
                body["model"] = f"no model {rng.random()}"
            try:
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    if kind == "leaves":
                        await answer.content.readany()
                        answer.close()
                    else:
                        await answer.read()
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)


@pytest.mark.long
@pytest.mark.timeout(SOAK_S + 600)
def test_memory_does_not_grow_under_mixed_traffic(net: Net) -> None:
    victims = [closed_at_end(Victim()) for _ in range(3)]
    router = net.router(
        *(victim.url for victim in victims),
        workers=2,
        max_connect_per_upstream=8,
        probe_interval=0.3,
        probe_timeout=1,
        wait_for=60_000,
    )
    eventually(lambda: len(router.logged("upstream ready")) >= 6, "three upstreams of two workers")
    supervisor = psutil.Process(router.process.pid)
    curve: list[tuple[float, int]] = []

    async def soak() -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        begun_s = loop.time()

        async def trouble() -> None:
            while not over.is_set():
                await disasters(victims, random.Random(), 1)

        counts: Counter[str] = Counter()
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(client(router.url, over, random.Random(number), counts))
            group.create_task(leavers(router.url, over, random.Random()))
            group.create_task(trouble())
            while loop.time() - begun_s < SOAK_S:
                await asyncio.sleep(EVERY_S)
                curve.append((loop.time() - begun_s, memory(supervisor)))
            over.set()
        assert not [kind for kind in counts if kind.startswith("error")], counts

    asyncio.run(soak())
    CURVE.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{at_s:.0f},{rss / 2**20:.1f}" for at_s, rss in curve]
    CURVE.write_text("\n".join(["seconds,mib", *lines]) + "\n")
    settled = median([rss for at_s, rss in curve if at_s >= SETTLED_S][:6])
    assert median([rss for _, rss in curve][-6:]) <= 1.1 * settled
    eventually(lambda: router.in_flight() == router.waiting() == 0, "nothing to be left")
    assert not router.logged("worker ended")
