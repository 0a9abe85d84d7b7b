"""Traces of a server's work as Chrome's JSON, which Perfetto's viewer (ui.perfetto.dev) opens.

A server is a process: it has tracks for its requests, as many as it had at once, one for the
iterations, one for each slot of the batch with what ran there, and counters of the queue, the KV
memory and the tokens. Client, router and model server are processes of their own (`trace.py`).
Arrows lead from a preemption to the readmission, and from process to process.
<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from seams import DECODE, KINDS
from watch.frames import Frame, Hello

TRACKS = ("requests", "iterations", "slot")  # their first words, in the order shown
PARTS = ("waits", "prefill", "decode")
COUNTERS = ("waiting", "KV blocks in use", "KV blocks cached", "tokens generated")


class Slice(NamedTuple):
    start_us: int
    end_us: int
    name: str
    notes: Mapping[str, int | str] = {}
    # slices that share one belong together; a string is one in all processes, a number in its own
    flows: Sequence[str | int] = ()
    parts: Sequence[Slice] = ()  # within it


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    tracks: Mapping[str, Sequence[Slice]]
    counters: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    offset_us: int = 0  # what the trace's clock is ahead of its own


def tracks(hello: Hello, frame: Frame, offset_us: int = 0) -> Process:
    """What the server did, by track. `offset_us`: as `Process` has it."""
    first, iterations = frame["first"], frame["iterations"]
    by_track: dict[str, list[Slice]] = {"iterations": []}
    for n, i in enumerate(iterations, first):
        notes = {
            "generated": i.generated,
            "tokens": i.tokens,
            "padding": i.padding,
            "waiting": i.waiting,
        }
        by_track["iterations"].append(
            Slice(i.start_us, i.start_us + i.duration_us, f"iteration {n}", notes)
        )
    lost = {request for _, request in frame["preempted"]}
    begun: dict[int, int] = {}
    for run in sorted(frame["runs"], key=lambda run: run.first):
        last = iterations[run.first + run.length - 1 - first]
        start_us = iterations[run.first - first].start_us
        begun.setdefault(run.request, start_us)
        facts = {"request": run.request, "tokens": run.tokens, "iterations": run.length}
        if run.accepted or run.rejected:
            facts |= {"accepted drafts": run.accepted, "rejected drafts": run.rejected}
        by_track.setdefault(f"slot {run.slot}", []).append(
            Slice(
                start_us,
                last.start_us + last.duration_us,
                f"{KINDS[run.kind]}, request {run.request}",
                facts,
                (run.request,) if run.request in lost and run.kind <= DECODE else (),
            )
        )
    by_track.update(side_by_side("requests", _requests(frame, begun)))
    at = [(i.start_us, (i.waiting, i.used, i.cached, i.generated)) for i in iterations]
    counters = {name: [(t, values[k]) for t, values in at] for k, name in enumerate(COUNTERS)}
    order = sorted(by_track, key=lambda name: (TRACKS.index(name.split()[0]), len(name), name))
    title = f"server: {hello['mode']}, model {hello['model']}"
    return Process(title, {name: by_track[name] for name in order}, counters, offset_us)


def _requests(frame: Frame, begun: Mapping[int, int]) -> Iterator[Slice]:
    """Each from its arrival to its end, in which it waits, is prefilled, and decodes; of one that
    has not ended only how long it waited. `begun`: when each was in an iteration first."""
    ended = {row.request: row for row in frame["ended"]}
    for row in frame["arrived"]:
        end = ended.get(row.request)
        if end is None:
            end_us = frame["now"]
            edges: list[int | None] = [row.at_us, begun.get(row.request, end_us)]
        else:
            edges = [row.at_us, end.admitted_us, end.first_token_us, end.end_us]
            end_us = end.end_us
        parts = [
            Slice(start, stop, name)
            for name, (start, stop) in zip(
                PARTS, pairwise(at for at in edges if at is not None), strict=False
            )
        ]
        notes: dict[str, int | str] = {
            "prompt tokens": row.prompt_tokens,
            "asked for": row.max_tokens,
            "tokens generated": 0 if end is None else end.generated,
            "end": "runs" if end is None else end.end,
        }
        flows: tuple[str, ...] = ()
        if row.request_id is not None:
            notes["request id"] = row.request_id
            flows = (row.request_id,)
        yield Slice(row.at_us, end_us, f"request {row.request}", notes, flows, parts)


def side_by_side(name: str, slices: Iterable[Slice]) -> dict[str, list[Slice]]:
    """In as few tracks as hold slices that overlap."""
    rows: list[list[Slice]] = []
    for one in sorted(slices, key=lambda one: one.start_us):
        free = next((row for row in rows if row[-1].end_us <= one.start_us), None)
        if free is None:
            rows.append([one])
        else:
            free.append(one)
    return {f"{name} {i}": row for i, row in enumerate(rows)}


class Trace(TypedDict):
    traceEvents: list[dict[str, Any]]
    displayTimeUnit: str


def chrome(processes: Sequence[Process]) -> Trace:
    events: list[dict[str, Any]] = []
    flows: dict[tuple[int, str | int], list[dict[str, Any]]] = {}  # by process, 0: in all
    for pid, process in enumerate(processes, 1):
        events.append(_named(pid, 0, "process_name", name=process.name))
        for tid, (name, slices) in enumerate(process.tracks.items(), 1):
            events.append(_named(pid, tid, "thread_name", name=name))
            events.append(_named(pid, tid, "thread_sort_index", sort_index=tid))
            for one in _with_parts(slices):
                of = {"pid": pid, "tid": tid, "ts": one.start_us + process.offset_us}
                took = one.end_us - one.start_us
                events.append({**of, "ph": "X", "dur": took, "name": one.name, "args": one.notes})
                for flow in one.flows:
                    key = 0 if isinstance(flow, str) else pid, flow
                    flows.setdefault(key, []).append(of)
        for name, values in process.counters.items():
            for at_us, value in values:
                of = {"pid": pid, "ts": at_us + process.offset_us}
                events.append({**of, "ph": "C", "name": name, "args": {"value": value}})
    for number, starts in enumerate(flows.values(), 1):
        for i, of in enumerate(sorted(starts, key=lambda of: of["ts"])):
            named = {"id": number, "name": "request", "cat": "request"}
            events.append({**of, **named, "ph": "t" if i else "s"})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(pid: int, tid: int, what: str, **facts: str | int) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": facts}


def _with_parts(slices: Iterable[Slice]) -> Iterator[Slice]:
    for one in slices:
        yield one
        yield from _with_parts(one.parts)
