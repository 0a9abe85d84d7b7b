"""What the pictures of the APIs and of the router read from responses as they were recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from requests import Session

from benchmarks.pictures import apis, figures, streams, tgi
from benchmarks.pictures.apis import CALLS, Taken
from benchmarks.pictures.figures import Timed
from benchmarks.pictures.streams import Stream
from benchmarks.pictures.tgi import Answered
from benchmarks.router import prefix
from benchmarks.router.prefix import POLICIES, Chat

HEAD = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "embedded"}
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "total_tokens": 11,
    "prompt_tokens_details": {"cached_tokens": 6},
}


def event(delta: Mapping[str, str] | None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: %s\n\n" % json.dumps({**HEAD, "choices": choices, **more}).encode()


CHAT = (
    event({"role": "assistant", "content": ""}),
    event({"content": "a"}),
    event({"content": "b"}),
    event({}),
    event(None, usage=USAGE),
    b"data: [DONE]\n\n",
)


@contextlib.contextmanager
def responding(body: bytes, headers: Mapping[str, str]) -> Iterator[str]:
    """A server with this response to every POST; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def with_client(url: str, ask: Callable[[AsyncOpenAI], Any]) -> Any:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return await ask(client)


def test_only_events_with_text_count_in_a_stream() -> None:
    with responding(b"".join(CHAT), {"Content-Type": "text/event-stream"}) as url:
        found = asyncio.run(with_client(url, lambda client: streams.stream(client, 2)))
    assert len(found.events_s) == 2
    assert found.sent_s < found.events_s[0] <= found.events_s[1]


def test_a_chat_names_the_server_that_the_router_chose_and_its_cached_tokens() -> None:
    headers = {"Content-Type": "text/event-stream", "X-Upstream-Origin": "http://b"}
    with responding(b"".join(CHAT), headers) as url:
        found = asyncio.run(
            with_client(
                url,
                lambda client: prefix.chat(
                    client, ("http://a", "http://b"), 3, "?", time.perf_counter()
                ),
            )
        )
    assert (found.server, found.system) == (1, 3)
    assert (found.prompt_tokens, found.cached_tokens) == (9, 6)


def test_what_the_headers_do_not_count_is_the_rest_of_the_clients_wait() -> None:
    headers = {"x-inference-time": "5", "x-queue-time": "7", "x-total-time": "13"}
    with responding(b"{}", headers) as url:
        assert tgi.ask(url, 1).headers_ms == (7, 5)
    assert Answered(2.0, 2.02, (7, 5)).outside_ms == pytest.approx(8)


def test_a_call_takes_the_whole_response() -> None:
    body = b"".join(CHAT)
    with responding(body, {"Content-Type": "text/event-stream"}) as url, Session() as session:
        taken = [apis.ask(session, url, call) for call in CALLS]
    assert [each.bytes for each in taken] == [len(body)] * len(CALLS)
    assert all(each.seconds > 0 for each in taken)


def test_a_request_is_placed_by_its_timing() -> None:
    timing = {"queue_s": 0.1, "ttft_s": 0.3, "tpot_s": None, "latency_s": 0.4}
    with responding(json.dumps({"timing": timing}).encode(), {}) as url:
        timed = figures.ask(url, 1)
    assert (timed.queue_s, timed.ttft_s, timed.latency_s) == (0.1, 0.3, 0.4)


STATS = {"total-tokens-handled": 30, "total-elapsed-time": 1.5}


def test_the_title_states_the_throughput_of_busy_time() -> None:
    title = figures.title([Timed(0.0, 0.1, 0.2, 1.0), Timed(0.0, 0.1, 0.2, 1.4)], STATS)
    assert title.startswith("throughput: 30 tokens / 1.50 s busy = 20 tokens/s")
    assert title.endswith("2.40 s")


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: streams.draw([Stream(1.0, (1.1, 1.2)), Stream(1.1, (1.15,))], path),
        lambda path: tgi.draw([Answered(2.0, 2.02, (7, 5)), Answered(2.1, 2.2, (0, 90))], path),
        lambda path: apis.draw([[Taken(0.01, 90), Taken(0.02, 95)]] * len(CALLS), path),
        lambda path: figures.draw([Timed(2.0, 0.1, 0.2, 0.9)], STATS, path),
        lambda path: prefix.draw([[Chat(0.0, 0, 0, 0.1, 9, 0)]] * len(POLICIES), path),
    ],
    ids=["openai", "tgi", "apis", "figures", "router"],
)
def test_a_picture_is_drawn_from_what_was_recorded(
    draw: Callable[[Path], None], tmp_path: Path
) -> None:
    draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size
