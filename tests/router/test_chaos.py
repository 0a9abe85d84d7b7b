"""Three real upstreams killed, frozen, slowed and restarted at random under load.

Every request ends in exactly one well-formed answer or error. The upstreams' trouble may cost those
whose answer had begun there, and nobody else.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable

import aiohttp
import pytest

from tests.router.conftest import Farm, RouterProcess, until

CLIENTS = 12
BEHAVE = {"events": 8, "interval": 0.01}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Victim:
    """An upstream process on a fixed port, and what can befall it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        self.farm = Farm("--upstream", str(self.port), "--behave", json.dumps(BEHAVE))

    def kill(self) -> None:
        self.farm.close()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.farm.process.pid, number)


async def disaster(victims: list[Victim], rng: random.Random, seconds: float) -> Counter[str]:
    """One upstream at a time, so that the others can take its work."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    done: Counter[str] = Counter()
    while loop.time() < end:
        victim = rng.choice(victims)
        # Each kind at least once, however short the run.
        kind = min(("kill", "freeze", "slow"), key=lambda k: (done[k], rng.random()))
        done[kind] += 1
        if kind == "kill":
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            await asyncio.to_thread(victim.start)
        elif kind == "freeze":
            victim.signal(signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(0.2, 1.5))
            victim.signal(signal.SIGCONT)
        else:
            slow = {"delay": 0.3, "interval": 0.05}
            await asyncio.to_thread(victim.farm, "behave", url=victim.url, **slow)
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            await asyncio.to_thread(victim.farm, "behave", url=victim.url, delay=0, **BEHAVE)
        await asyncio.sleep(rng.uniform(0.3, 0.8))
    return done


async def client(url: str, until_s: float, rng: random.Random, counts: Counter[str]) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        while asyncio.get_running_loop().time() < until_s:
            stream = rng.random() < 0.5
            body = {"model": "m", "prompt": "x", "stream": stream}
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                counts[judge(answer.status, stream, await answer.read())] += 1
            await asyncio.sleep(rng.uniform(0, 0.02))


def judge(status: int, stream: bool, raw: bytes) -> str:
    """Which well-formed end this is; fails on any other."""
    if status != 200:
        error = json.loads(raw)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return f"error {status} {error['code']}"
    if not stream:
        assert json.loads(raw)["choices"][0]["text"].split() == [f"w{i}" for i in range(8)]
        return "whole"
    assert raw.endswith(b"\n\n")
    events = [e.removeprefix(b"data: ") for e in raw.split(b"\n\n")[:-1]]
    words = [json.loads(e) for e in events[:-1]]
    assert [w["choices"][0]["text"] for w in words] == [f" w{i}" for i in range(len(words))]
    if events[-1] == b"[DONE]":
        assert len(words) == 8
        return "whole stream"
    assert "error" in json.loads(events[-1])
    assert 1 <= len(words) <= 8
    return "cut stream"


async def chaos(router: RouterProcess, victims: list[Victim], seconds: float) -> Counter[str]:
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    end = asyncio.get_running_loop().time() + seconds
    async with asyncio.TaskGroup() as group:
        events = group.create_task(disaster(victims, rng, seconds - 2))
        for i in range(CLIENTS):
            group.create_task(client(router.url, end, random.Random(i), counts))
    assert min(events.result().values()) >= 1
    return counts


def run(start: Callable[..., RouterProcess], seconds: float) -> None:
    victims = [Victim(free_port()) for _ in range(3)]
    try:
        router = start(
            *(v.url for v in victims),
            max_connect_per_upstream=6,
            probe_interval=0.3,
            probe_timeout=1,
        ).probed()
        until(lambda: len(router.logged("upstream ready")) >= 3, "three ready upstreams")
        counts = asyncio.run(chaos(router, victims, seconds))
        print(dict(counts), file=sys.stderr)
        assert not [kind for kind in counts if kind.startswith("error")], counts
        assert counts["whole"] > CLIENTS
        assert counts["whole stream"] > CLIENTS
        assert router.in_flight() == 0
        assert router.waiting() == 0
        assert router.process.poll() is None
    finally:
        for victim in victims:
            victim.kill()


def test_chaos_costs_only_streams_that_had_begun_on_a_dying_upstream(
    start: Callable[..., RouterProcess],
) -> None:
    run(start, 18)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_minutes_of_chaos(start: Callable[..., RouterProcess]) -> None:
    run(start, 120)
