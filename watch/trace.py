"""Recorded runs as one trace in Chrome's JSON, for ui.perfetto.dev or Chrome's viewer.

    python -m watch.trace FOLDER [--out trace.json]

FOLDER holds a file for each server, router and model server, written by `--record
FOLDER/NAME.jsonl`, and what a client wrote with `--out FOLDER`. Each is a process of the trace, on
the wall clock. docs/deployment.md has the formats.

A server has tracks for its requests, as many as it had at once, one for the iterations, one for
each slot of the batch with what ran there, and counters of the queue, the KV memory and the tokens.
Arrows lead from a preemption to the readmission, and follow a request from process to process.
<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from seams import DECODE, KINDS
from watch.frames import (
    CLIENT,
    MODEL_SERVER,
    ROUTER,
    SERVER,
    US,
    Frame,
    Hello,
    Line,
    RunError,
    files,
    in_us,
    offset_us,
    read,
    read_lines,
    reading,
)

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


def read_processes(folder: Path) -> list[Process]:
    """In the order in which a request meets them. Raises RunError."""
    written = files(folder)
    processes = [process for of, path in written if of == CLIENT for process in client(path)]
    for kind, process_of in ((ROUTER, _router), (SERVER, _server), (MODEL_SERVER, _model_server)):
        for path in (path for of, path in written if of == kind):
            with reading(path):
                processes.append(process_of(path))
    if not processes:
        raise RunError(
            f"{folder} has nothing to trace; a server writes it with --record {folder}/NAME.jsonl"
        )
    return processes


def client(path: Path) -> list[Process]:
    """A process for each run of a client's raw data (`runs.jsonl.gz`). Raises RunError."""
    with reading(path), gzip.open(path, "rt", encoding="utf-8") as file:
        runs = [json.loads(line)["run"] for line in file]
        return [_client(run) for run in runs if run["began_unix_s"] is not None]


def _client(run: Line) -> Process:
    slices = []
    for outcome in run["outcomes"]:
        sent_us, left_us = in_us(outcome["sent_s"]), in_us(outcome["left_s"])
        parts = []
        if outcome["first_s"] is not None:
            first_us = in_us(outcome["first_s"])
            parts = [Slice(sent_us, first_us, "until the first token")]
            parts += [Slice(first_us, left_us, "tokens come")]
        id = f"{run['name']}/{outcome['index']}"  # as Run.request_id of the client has it
        notes: dict[str, int | str] = {
            "request id": id,
            "tokens": outcome["output_tokens"] or 0,
            "end": outcome["failure"] or "complete",
        }
        if outcome["intended_s"] is not None:
            notes["sent late, µs"] = sent_us - in_us(outcome["intended_s"])
        name = f"request {outcome['index']}"
        slices.append(Slice(sent_us, left_us, name, notes, (id,), parts))
    changes = itertools.accumulate(
        sorted([(s.start_us, 1) for s in slices] + [(s.end_us, -1) for s in slices]),
        lambda before, change: (change[0], before[1] + change[1]),
    )
    title = f"client: {run['target']}, {run['name']}"
    counters = {"in flight": [*changes]}
    zero_us = round(run["began_unix_s"] * US)
    return Process(title, side_by_side("requests", slices), counters, zero_us)


def _server(path: Path) -> Process:
    run = read(path)
    return tracks(run.hello, run.frame, run.offset_us)


def _router(path: Path) -> Process:
    head, lines = read_lines(path)
    slices = []
    for line in (line for line in lines if line["type"] == "routed"):
        start_us, end_us = in_us(line["start_s"]), in_us(line["end_s"])
        id = line["request_id"]
        notes: dict[str, int | str] = {"request id": id, "status": line["status"]}
        parts = [
            Slice(in_us(start_s), in_us(end_s), f"attempt {n}: {upstream}", {}, (id,))
            for n, (upstream, start_s, end_s) in enumerate(line["attempts"], 1)
        ]
        slices.append(Slice(start_us, end_us, line["path"], notes, (id,), parts))
    return Process("router", side_by_side("requests", slices), offset_us=offset_us(head))


def _model_server(path: Path) -> Process:
    """A track for its iterations. The arrow of a request leads to the first one that it is in."""
    head, lines = read_lines(path)
    slices, known = [], set[str]()
    for n, (line, ids) in enumerate(_iterations(lines)):
        start_us, end_us = in_us(line["start_s"]), in_us(line["start_s"] + line["duration_s"])
        notes: dict[str, int | str] = {
            "tokens": sum(tokens for _, tokens, _ in line["rows"]),
            "drawn": sum(drawn for _, _, drawn in line["rows"]),
            "request ids": " ".join(ids),
        }
        new = [id for id in ids if id not in known]
        known.update(new)
        slices.append(Slice(start_us, end_us, f"iteration {n}", notes, new))
    title = f"model server: {head['model']}, rank {head['rank']}"
    return Process(title, {"iterations": slices}, offset_us=offset_us(head))


def _iterations(lines: Sequence[Line]) -> Iterator[tuple[Line, list[str]]]:
    """Each with the ids of the requests in it."""
    id_of: dict[int, str | None] = {}
    for line in lines:
        match line["type"]:
            case "opened":
                id_of[line["sequence"]] = line["request_id"]
            case "forgotten":
                id_of.clear()
            case "iteration":
                named = (id_of.get(sequence) for sequence, _, _ in line["rows"])
                yield line, list(dict.fromkeys(id for id in named if id is not None))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("trace.json"), help="default: %(default)s")
    args = parser.parse_args(arguments)
    try:
        args.out.write_text(json.dumps(chrome(read_processes(args.folder))))
    except (RunError, OSError) as error:
        sys.exit(f"watch.trace: {error}")
    print(args.out)


if __name__ == "__main__":
    main()
