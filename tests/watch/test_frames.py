"""Frames, traces and the film say what the records say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from records import DECODE, KINDS, Arrived, Ended, Event, IterationRecord, RequestRecord, Row, Rows
from telemetry.recording import as_json
from watch import film
from watch.frames import Hello, event_of, make_frame
from watch.runs import RECORDED, RunError, read_folder
from watch.tracks import perfetto, tracks

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


def drafted(n: int, accepted: int, rejected: int) -> IterationRecord:
    """A decode of one request with drafts."""
    rows = Rows((7,), (0,), (1 + accepted,), bytes([DECODE]), (accepted,), (rejected,))
    return replace(
        iterated(n, ()),
        batch_size=1,
        num_tokens=1 + accepted,
        num_positions=1 + accepted + rejected,
        num_generated=1 + accepted,
        accepted_drafts=accepted,
        rejected_drafts=rejected,
        rows=rows,
    )


def test_a_run_holds_iterations_that_advance_a_request_by_as_many_tokens() -> None:
    advances = [(2, 1), (2, 1), (0, 3), (0, 0), (0, 0), (4, 0)]
    frame = make_frame([drafted(n, *of) for n, of in enumerate(advances)], 0, 1.0)
    runs = [(r.length, r.tokens, r.accepted, r.rejected) for r in frame["runs"]]
    assert runs == [(2, 6, 4, 2), (1, 1, 0, 3), (2, 2, 0, 0), (1, 5, 4, 0)]
    assert [i.padding for i in frame["iterations"]] == [0] * 6


def events() -> list[Event]:
    """Request 7 waits, is prefilled, loses its place, and is prefilled again."""
    record = RequestRecord(0.0, 0.01, 0.02, 0.05, 0.05, 3, 3, 3, 1, "immediate", "length")
    lost = iterated(3, [(7, 0, 4, 0)])
    return [
        Arrived(7, 0.0, 3, 3, "immediate"),
        iterated(1, [(7, 1, 3, 0)]),
        iterated(2, [(7, 1, 1, 2)]),
        replace(lost, preempted=(7,)),
        iterated(4, [(7, 0, 1, 2)]),
        Ended(7, record),
    ]


def read_again(event: Event) -> Event | None:
    """As it is written to a recording."""
    return event_of(json.loads(json.dumps(as_json(event))))


def test_a_line_of_a_recording_is_the_event_that_it_was_written_from() -> None:
    again = [read_again(event) for event in events()]
    assert make_frame([e for e in again if e], 0, 1.0) == make_frame(events(), 0, 1.0)
    assert event_of({"type": "missed", "events": 3}) is None
    assert [*Rows((1,), (2,), (3,), b"\x02")] == [Row(1, 2, 3, "decode")]
    record = replace(drafted(0, 2, 1), preempted=[])
    assert read_again(record) == record
    line = as_json(iterated(0, [(7, 0, 1, DECODE)]))
    line["rows"] = [row[:4] for row in line["rows"]]  # as recordings were written before drafts
    found = event_of(json.loads(json.dumps(line)))
    assert isinstance(found, IterationRecord)
    assert [(row.num_tokens, row.accepted) for row in found.rows] == [(1, 0)]


def test_the_trace_adds_up_to_the_records_and_nests() -> None:
    frame = make_frame(events(), 0, 1.0)
    parsed = Trace.FromString(perfetto([tracks(HELLO, frame)]))
    names = {p.track_descriptor.uuid: p.track_descriptor.name for p in parsed.packet}
    notes = [
        {note.name: note.int_value for note in p.track_event.debug_annotations}
        for p in parsed.packet
    ]
    assert sum(note.get("generated", 0) for note in notes) == 4
    in_slots = [note["tokens"] for note in notes if "iterations" in note]
    assert sum(in_slots) == sum(i.tokens for i in frame["iterations"])
    open_slices: dict[int, list[int]] = {}
    for p in parsed.packet:
        track = p.track_event.track_uuid
        if p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices.setdefault(track, []).append(p.timestamp)
        elif p.track_event.type == TrackEvent.TYPE_SLICE_END:
            assert open_slices[track].pop() <= p.timestamp
    assert not any(open_slices.values())
    flows = [p.track_event.flow_ids[0] for p in parsed.packet if p.track_event.flow_ids]
    assert len(flows) == 4
    assert len(set(flows)) == 1
    assert {"iterations", "slot 0", "slot 1", "requests 0", "waiting"} <= set(names.values())


def test_of_a_request_that_runs_the_trace_says_how_long_it_waited() -> None:
    told = tracks(HELLO, make_frame(events()[:-1], 0, 1.0))
    (request,) = told.tracks["requests 0"]
    assert (request.start_us, request.end_us) == (0, 1_000_000)
    assert [(part.name, part.start_us, part.end_us) for part in request.parts] == [
        ("waits", 0, 10_000)
    ]


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


def test_a_folder_without_runs_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--record"):
        read_folder(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"type": "head"}\n')
    with pytest.raises(RunError, match=r"x\.jsonl"):
        read_folder(tmp_path)
