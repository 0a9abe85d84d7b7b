"""Events as a client gets them: who may, how many, and what becomes of one that does not read."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import requests

from records import History
from tests.support.hash_app import STEP_S
from tests.support.process import PATIENCE_S, Server, serving
from tests.watch.conftest import KEY
from tests.watch.test_frames import HELLO, iterated
from watch.hub import MOST_BEHIND, FullError, Hub

HEADERS = {"Authorization": f"Bearer {KEY}"}


def asked(server: Server, path: str, **options: Any) -> requests.Response:
    return requests.get(server.url + path, headers=HEADERS, timeout=PATIENCE_S, **options)


def test_the_page_needs_no_key_but_its_data_does_and_texts_are_private(locked: Server) -> None:
    for path in ("/watch", "/watch/page/main.js", "/watch/page/recorded/dynamic.json"):
        assert requests.get(locked.url + path, timeout=PATIENCE_S).status_code == 200
    for path in ("/watch/events", "/watch/trace", "/watch/text/0"):
        assert requests.get(locked.url + path, timeout=PATIENCE_S).status_code == 401
    assert requests.post(f"{locked.url}/watch/play", timeout=PATIENCE_S).status_code == 401
    private = asked(locked, "/watch/text/0")
    assert private.status_code == 403
    assert "--watch-text" in private.json()["error"]
    for form, status in (("perfetto", 200), ("chrome", 200), ("x", 400)):
        trace = asked(locked, f"/watch/trace?format={form}")
        assert trace.status_code == status
        assert trace.content


def test_a_server_with_viewers_ends_at_once_when_it_has_drained(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={STEP_S: 0.001}) as server:
        answer = requests.get(f"{server.url}/watch/events", stream=True, timeout=PATIENCE_S)
        assert next(answer.iter_lines()) == b"event: hello"
        server.process.send_signal(15)
        assert server.process.wait(PATIENCE_S) == 0
        answer.close()


def test_a_viewer_that_does_not_read_is_dropped_and_the_others_miss_nothing() -> None:
    history = History(4)
    hub = Hub(history, lambda: HELLO, dict, lambda: 1.0, lambda: False, 2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        slow, quick = hub.join(ours), hub.join(None)
        with pytest.raises(FullError):
            hub.join(None)
        read = iter(quick)
        seen = 0
        next(read), next(read)  # hello, and what was before
        for n in range(MOST_BEHIND + 5):
            history.add(iterated(n, [(1, 0, 1, 2)]))
            hub.backlog(1)  # as the hub's own thread does from time to time
            while seen <= n:
                frame = json.loads(next(read).split(b"data: ")[1])
                seen += len(frame["iterations"])
        assert hub.viewers == 1
        assert theirs.recv(1) == b""  # it was hung up on
        hub.leave(slow)
        hub.leave(quick)
