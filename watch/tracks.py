"""Traces of a server's work, for Perfetto's viewer (ui.perfetto.dev) and for Chrome's.

A server is a process of the trace. It has a track for each slot of the batch, one for the
iterations, as many for the queue as requests waited at once, and counters of the queue, the KV
memory and the tokens. A preempted request is one flow of arrows. Times are those of the server's
clock, which the processes of a machine share.
<https://perfetto.dev/docs/instrumentation/track-events>
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    Trace,
    TrackDescriptor,
    TrackEvent,
)

from records import DECODE, KINDS
from watch.frames import Frame, Hello

NS = 1000  # per microsecond
SEQUENCE = 1
COUNTERS = ("waiting", "KV blocks in use", "KV blocks cached", "tokens generated")


@dataclass(frozen=True, slots=True)
class Slice:
    start_us: int
    end_us: int
    name: str
    notes: Mapping[str, int | str] = field(default_factory=dict)
    flow: int | None = None  # slices of the same flow belong together


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    tracks: Mapping[str, Sequence[Slice]]
    counters: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


def tracks(hello: Hello, frame: Frame) -> Process:
    """What the server did, by track."""
    first, iterations = frame["first"], frame["iterations"]
    found: dict[str, list[Slice]] = {"iterations": []}
    for n, i in enumerate(iterations, first):
        notes = {
            "generated": i.generated,
            "tokens": i.tokens,
            "padding": i.padding,
            "waiting": i.waiting,
        }
        found["iterations"].append(
            Slice(i.start_us, i.start_us + i.duration_us, f"iteration {n}", notes)
        )
    lost = {request for _, request in frame["preempted"]}
    begun: dict[int, int] = {}
    for run in sorted(frame["runs"], key=lambda run: run.first):
        last = iterations[run.first + run.length - 1 - first]
        start_us = iterations[run.first - first].start_us
        begun.setdefault(run.request, start_us)
        found.setdefault(f"place {run.lane}", []).append(
            Slice(
                start_us,
                last.start_us + last.duration_us,
                f"{KINDS[run.kind]}, request {run.request}",
                {"request": run.request, "tokens": run.tokens, "iterations": run.length},
                run.request if run.request in lost and run.kind <= DECODE else None,
            )
        )
    ended = {row.request: row for row in frame["ended"]}
    waits = []
    for row in frame["arrived"]:
        end = ended.get(row.request)
        last_us = frame["now"] if end is None else end.end_us
        notes_of = {"prompt tokens": row.prompt_tokens, "asked for": row.max_tokens}
        until_us = max(row.at_us, begun.get(row.request, last_us))
        waits.append(Slice(row.at_us, until_us, f"request {row.request} waits", notes_of))
    found.update(_side_by_side("queue", waits))
    at = [(i.start_us, (i.waiting, i.used, i.cached, i.generated)) for i in iterations]
    counters = {name: [(t, values[k]) for t, values in at] for k, name in enumerate(COUNTERS)}
    order = sorted(found, key=lambda name: (name.split()[0] != "iterations", len(name), name))
    title = f"server: {hello['mode']}, model {hello['model']}"
    return Process(title, {name: found[name] for name in order}, counters)


def _side_by_side(name: str, slices: Sequence[Slice]) -> dict[str, list[Slice]]:
    """Distributes overlapping slices over as few tracks as possible."""
    found: list[list[Slice]] = []
    for one in sorted(slices, key=lambda one: one.start_us):
        place = next((of for of in found if of[-1].end_us <= one.start_us), None)
        if place is None:
            found.append([one])
        else:
            place.append(one)
    return {f"{name} {i}": of for i, of in enumerate(found)}


def perfetto(processes: Sequence[Process]) -> bytes:
    """As TrackEvent protobuf."""
    trace = Trace()
    number = iter(range(1, 2**31))

    def packet(at_us: int | None = None) -> Any:
        made = trace.packet.add()
        made.trusted_packet_sequence_id = SEQUENCE
        if at_us is not None:
            made.timestamp = at_us * NS
        return made

    def describe(name: str, parent: int) -> TrackDescriptor:
        described = packet().track_descriptor
        described.uuid, described.parent_uuid, described.name = next(number), parent, name
        return described

    for pid, process in enumerate(processes, 1):
        whole = packet().track_descriptor
        whole.uuid, whole.process.pid, whole.process.process_name = next(number), pid, process.name
        for name, slices in process.tracks.items():
            track = describe(name, whole.uuid).uuid
            for one in slices:
                begin = packet(one.start_us).track_event
                begin.type, begin.track_uuid, begin.name = (
                    TrackEvent.TYPE_SLICE_BEGIN,
                    track,
                    one.name,
                )
                for key, value in one.notes.items():
                    note = begin.debug_annotations.add()
                    note.name = key
                    if isinstance(value, int):
                        note.int_value = value
                    else:
                        note.string_value = value
                if one.flow is not None:
                    begin.flow_ids.append((pid << 32) + one.flow + 1)
                end = packet(one.end_us).track_event
                end.type, end.track_uuid = TrackEvent.TYPE_SLICE_END, track
        for name, values in process.counters.items():
            described = describe(name, whole.uuid)
            described.counter.SetInParent()
            for at_us, value in values:
                event = packet(at_us).track_event
                event.type, event.track_uuid = TrackEvent.TYPE_COUNTER, described.uuid
                event.counter_value = value
    data: bytes = trace.SerializeToString()
    return data


def chrome(processes: Sequence[Process]) -> bytes:
    """As Chrome's JSON, which older viewers read."""
    events = [event for pid, of in enumerate(processes, 1) for event in _chrome_events(pid, of)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()


def _chrome_events(pid: int, process: Process) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process.name}}
    for tid, (name, slices) in enumerate(process.tracks.items(), 1):
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {
            "ph": "M",
            "pid": pid,
            "tid": tid,
            "name": "thread_sort_index",
            "args": {"sort_index": tid},
        }
        for one in slices:
            of = {"pid": pid, "tid": tid, "ts": one.start_us}
            yield {
                **of,
                "ph": "X",
                "dur": one.end_us - one.start_us,
                "name": one.name,
                "args": {**one.notes},
            }
    flows: dict[int, list[tuple[int, Slice]]] = {}
    for tid, slices in enumerate(process.tracks.values(), 1):
        for one in slices:
            if one.flow is not None:
                flows.setdefault(one.flow, []).append((tid, one))
    for flow, parts in flows.items():
        for i, (tid, one) in enumerate(sorted(parts, key=lambda part: part[1].start_us)):
            phase = "s" if i == 0 else "t"
            yield {
                "ph": phase,
                "pid": pid,
                "tid": tid,
                "ts": one.start_us,
                "id": flow,
                "name": "request",
                "cat": "request",
            }
    for name, values in process.counters.items():
        for at_us, value in values:
            yield {"ph": "C", "pid": pid, "ts": at_us, "name": name, "args": {"value": value}}
