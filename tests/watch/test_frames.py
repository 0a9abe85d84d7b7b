"""Frames and the film say what the records say; who gets them, and what becomes of a viewer that
does not read."""

from __future__ import annotations

import json
import socket
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from engine.lifecycle import Arrived, Ended, Event, History
from seams import DECODE, KINDS, IterationRecord, RequestRecord, Rows
from telemetry.recording import as_json, event_of
from tests.support.process import PATIENCE_S, Server
from tests.watch.conftest import KEY
from watch import film
from watch.frames import RECORDED, Hello, make_frame, read_folder
from watch.hub import MOST_BEHIND, FullError, Hub

ROW = st.tuples(
    st.integers(0, 9), st.integers(0, 3), st.integers(0, 5), st.integers(0, len(KINDS) - 1)
)
ROWS = st.lists(ROW, max_size=4, unique_by=lambda row: row[1])


def iterated(n: int, rows: Sequence[tuple[int, int, int, int]]) -> IterationRecord:
    requests, slots, tokens, kinds = zip(*rows, strict=True) if rows else ((), (), (), ())
    return IterationRecord(
        len(rows),
        sum(tokens),
        rows=Rows(requests, slots, tokens, bytes(kinds)),
        num_waiting=1,
        used_blocks=2,
        cached_blocks=3,
        free_blocks=5,
        start_s=n * 0.01,
        duration_s=0.01,
        num_positions=sum(tokens) + 1,
        padding=1,
        num_generated=len(rows),
    )


@given(st.lists(st.tuples(ROWS, st.integers(1, 3)), max_size=8), st.integers(0, 100))
def test_runs_hold_every_row_of_every_iteration_once(
    groups: list[tuple[list[tuple[int, int, int, int]], int]], first: int
) -> None:
    rows = [rows for rows, times in groups for _ in range(times)]
    frame = make_frame([iterated(n, each) for n, each in enumerate(rows)], first, 1.0)
    told = {
        (run.first + i - first, run.request, run.slot, run.kind)
        for run in frame["runs"]
        for i in range(run.length)
    }
    assert told == {(n, r, slot, k) for n, each in enumerate(rows) for r, slot, _, k in each}
    assert sum(run.tokens for run in frame["runs"]) == sum(row[2] for each in rows for row in each)


def test_a_line_of_a_recording_is_the_event_that_it_was_written_from() -> None:
    def read_again(event: Event) -> Event | None:
        return event_of(json.loads(json.dumps(as_json(event))))

    drafts = Rows((7,), (0,), (3,), bytes([DECODE]), (2,), (1,))
    record = RequestRecord(0.0, 0.01, 0.02, 0.05, 0.05, 3, 3, 3, 1, "immediate", "length")
    events: list[Event] = [
        Arrived(7, 0.0, 3, 3, "immediate"),
        iterated(1, [(7, 1, 3, 0)]),
        replace(iterated(3, [(7, 0, 4, 0)]), preempted=(7,)),
        IterationRecord(
            1, 3, rows=drafts, num_positions=4, preempted=[], accepted_drafts=2, rejected_drafts=1
        ),
        Ended(7, record),
    ]
    again = [read_again(event) for event in events]
    assert again[3] == events[3]
    assert make_frame([e for e in again if e], 0, 1.0) == make_frame(events, 0, 1.0)
    assert event_of({"type": "missed", "events": 3}) is None


def test_the_recorded_runs_are_whole_and_the_film_shows_them(tmp_path: Path) -> None:
    runs = read_folder(RECORDED)
    assert [run.hello["mode"] for run in runs] == ["nobatch", "static", "dynamic"]
    asked = [sorted((a.prompt_tokens, a.max_tokens) for a in run.frame["arrived"]) for run in runs]
    assert asked[0] == asked[1] == asked[2]
    for run in runs:
        generated = sum(i.generated for i in run.frame["iterations"])
        assert generated == sum(end.generated for end in run.frame["ended"])
        starts = [i.start_us for i in run.frame["iterations"]]
        assert all(a < b for a, b in pairwise(starts))
    film.main([str(RECORDED), "--out", str(tmp_path / "film.svg")])
    drawn = (tmp_path / "film.svg").read_text()
    ET.fromstring(drawn)
    assert drawn.count("all 20 completed") == 3
    assert drawn.count('class="done"') == 1  # the quickest
    assert len(drawn) < 50_000
    film.main([str(RECORDED), "--modes", "static,dynamic", "--out", str(tmp_path / "film.svg")])
    assert (tmp_path / "film.svg").read_text().count("all 20 completed") == 2


# --- viewers --------------------------------------------------------------------------------

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
    assert asked(locked, "/watch/trace").json()["traceEvents"]


def test_a_viewer_that_does_not_read_is_dropped_and_the_others_miss_nothing() -> None:
    history = History(4)
    hub = Hub(history, lambda: cast("Hello", {}), dict, lambda: 1.0, lambda: False, 2)
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
