"""Frames, traces and the film say what the records say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from records import DECODE, KINDS, Arrived, Ended, Event, IterationRecord, RequestRecord, Rows
from telemetry.recording import as_json
from watch import film
from watch.frames import Hello, event_of, make_frame
from watch.runs import RECORDED, read_folder

HELLO: Hello = {
    "mode": "dynamic",
    "policy": "orca",
    "model": "hash",
    "slots": 4,
    "blocks": 10,
    "block_tokens": 16,
    "text": False,
}
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
        IterationRecord(1, 3, rows=drafts, preempted=[], accepted_drafts=2, rejected_drafts=1),
        Ended(7, record),
    ]
    again = [read_again(event) for event in events]
    assert again[3] == events[3]
    assert make_frame([e for e in again if e], 0, 1.0) == make_frame(events, 0, 1.0)
    assert event_of({"type": "missed", "events": 3}) is None
    line = as_json(iterated(0, [(7, 0, 1, DECODE)]))
    line["rows"] = [row[:4] for row in line["rows"]]  # as recordings were written before drafts
    found = event_of(json.loads(json.dumps(line)))
    assert isinstance(found, IterationRecord)
    assert [(row.num_tokens, row.accepted) for row in found.rows] == [(1, 0)]


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
    assert len(drawn) < 50_000
