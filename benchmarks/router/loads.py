"""The loads of the router's benchmark: closed loop (`wrk`), open loop at a rate, many streams."""

import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import psutil

from benchmarks.router.targets import CHAT, Target

PATH = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer sk-x"}


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed loop: responses per second, median and 99th percentile of latency in ms, and responses
    other than 200."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    failed: int


def closed_loop(target: Target, connections: int, seconds: float) -> Closed:
    """`connections` clients, each sending its next request after the response."""
    headers = "".join(f"wrk.headers['{k}'] = '{v}'\n" for k, v in HEADERS.items())
    script = f"wrk.method = 'POST'\nwrk.body = '{CHAT.decode()}'\n{headers}"
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency"]
        command += ["--timeout", "10s", "-s", file.name, target.url + PATH]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = float(_found(r"Requests/sec:\s+([\d.]+)", text))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Closed(
        rate, _ms(text, "50%"), _ms(text, "99%"), int(bad.group(1)) if bad is not None else 0
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"wrk printed nothing like {pattern}:\n{text}")
    return match.group(1)


def _ms(text: str, percentile: str) -> float:
    value = _found(rf"{percentile}\s+([\d.]+[mu]?s)", text)
    number = float(value.rstrip("mus"))
    return number / 1000 if value.endswith("us") else number if value[-2] == "m" else number * 1000


def percentile_ms(seconds: list[float], percent: float) -> float:
    """The nearest-rank percentile, in milliseconds."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


async def open_loop(
    targets: Sequence[Target], rate: float, seconds: float
) -> dict[str, list[float]]:
    """`rate` requests a second to each target, independent of the responses. The targets take
    turns, so that other work on the machine affects them equally. Latencies in seconds from the
    intended time, so that a stall counts for every request that waited in it."""
    latencies: dict[str, list[float]] = {target.name: [] for target in targets}

    async def one(session: aiohttp.ClientSession, target: Target, intended: float) -> None:
        async with session.post(target.url + PATH, data=CHAT, headers=HEADERS) as answer:
            await answer.read()
            answer.raise_for_status()
        latencies[target.name].append(time.perf_counter() - intended)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for target in targets:
            await one(session, target, time.perf_counter())
            latencies[target.name].clear()
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for i in range(int(rate * seconds) * len(targets)):
                intended = begun + i / (rate * len(targets))
                if (early := intended - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                group.create_task(one(session, targets[i % len(targets)], intended))
    return latencies


@dataclass(frozen=True, slots=True)
class Streams:
    """Many streams at once: how many arrived complete, events received and due, the router's peak
    resident memory in MB, and the share of one core it used."""

    streams: int
    whole: int
    events: int
    events_due: int
    rss_mb: float
    cpu_cores: float
    lag_p99_ms: float


async def many_streams(target: Target, streams: int, rate: float, tokens: int) -> Streams:
    """`streams` streams of `tokens` events, `rate` a second each, all open together. The lag is
    that of each stream's last event behind its pace."""
    process = psutil.Process(target.pid)
    body = {"model": "m", "messages": [], "stream": True, "tokens": tokens, "rate": rate}
    whole = events = 0
    lags: list[float] = []
    peak = 0

    async def one(session: aiohttp.ClientSession, delay: float) -> None:
        nonlocal whole, events
        await asyncio.sleep(delay)  # arrivals spread over two seconds, as clients are not in step
        begun = time.perf_counter()
        count, last = 0, b""
        async with session.post(target.url + PATH, json=body, headers=HEADERS) as answer:
            async for chunk in answer.content.iter_any():
                count += chunk.count(b"data: ")
                last = (last + chunk)[-16:]
        lags.append(time.perf_counter() - begun - tokens / rate)
        events += count - 1
        whole += last.endswith(b"data: [DONE]\n\n") and count == tokens + 1

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.2)

    watcher = asyncio.create_task(watch())
    used, begun = sum(process.cpu_times()[:2]), time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(
            *(one(session, 2 * i / streams) for i in range(streams)), return_exceptions=True
        )
    cores = (sum(process.cpu_times()[:2]) - used) / (time.perf_counter() - begun)
    watcher.cancel()
    return Streams(
        streams,
        whole,
        events,
        streams * tokens,
        peak / 2**20,
        cores,
        percentile_ms(lags, 99),
    )
