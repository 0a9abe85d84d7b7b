"""Three real upstreams killed, frozen and restarted at random under load.

Every request ends in exactly one well-formed answer or error. The upstreams' trouble may cost those
whose answer had begun there, and no others.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.router.conftest import Net
from tests.support.forked import Forked
from tests.support.process import PATIENCE_S, closed_at_end, eventually
from tests.support.upstream import listening_socket

CLIENTS = 12
BEHAVE = {"events": 8, "interval": 0.01}


class Victim:
    """An upstream process on a fixed port, and what can befall it. The port is bound here as well
    (and not listened on), so that no other process gets it while the process is dead."""

    def __init__(self) -> None:
        self.bound = listening_socket()
        self.port = self.bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115 (closed by close)
        self.start()

    def start(self) -> None:
        log, args = Path(self.log.name), [str(self.port), json.dumps(BEHAVE)]
        self.process = Forked("tests.support.upstream", args, os.environ, log)
        eventually(lambda: log.read_text() == "started\n", "an upstream")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.bound.close()
        self.log.close()


async def disasters(victims: list[Victim], rng: random.Random, rounds: int) -> None:
    """One upstream at a time, so that the others can take its work; each kind once a round."""
    for _ in range(rounds):
        for kind in rng.sample(("kill", "freeze"), 2):
            victim = rng.choice(victims)
            if kind == "kill":
                await asyncio.to_thread(victim.kill)
            else:
                victim.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(0.2, 1.2))
            if kind == "kill":
                await asyncio.to_thread(victim.start)
            else:
                victim.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(rng.uniform(0.3, 0.8))


async def client(url: str, over: asyncio.Event, rng: random.Random, counts: Counter[str]) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:
        while not over.is_set():
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [2, pytest.param(35, marks=pytest.mark.long)])
def test_chaos_costs_only_streams_that_had_begun_on_a_dying_upstream(net: Net, rounds: int) -> None:
    victims = [closed_at_end(Victim()) for _ in range(3)]
    router = net.router(
        *(v.url for v in victims),
        max_connect_per_upstream=6,
        probe_interval=0.3,
        probe_timeout=1,
        wait_for=1000 * PATIENCE_S,  # no request is refused because a busy machine is slow
    )
    eventually(lambda: len(router.logged("upstream ready")) >= 3, "three ready upstreams")
    counts: Counter[str] = Counter()

    async def chaos() -> None:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for i in range(CLIENTS):
                group.create_task(client(router.url, over, random.Random(i), counts))
            await disasters(victims, random.Random(7), rounds)
            over.set()

    asyncio.run(chaos())
    assert not [kind for kind in counts if kind.startswith("error")], counts
    assert counts["whole"] > CLIENTS
    assert counts["whole stream"] > CLIENTS
    assert router.in_flight() == 0
    assert router.waiting() == 0
    assert router.process.poll() is None
