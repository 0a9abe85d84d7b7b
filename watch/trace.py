"""Recorded runs as one trace, for ui.perfetto.dev or Chrome's viewer.

    python -m watch.trace FOLDER [--out trace.json]

FOLDER holds a file for each server, router and model server, written by `--record
FOLDER/NAME.jsonl`, and what a client wrote with `--out FOLDER`. Each is a process of the trace, on
the wall clock; arrows follow a request through all of them. docs/deployment.md has the formats.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from watch.frames import US
from watch.runs import (
    CLIENT,
    MODEL_SERVER,
    ROUTER,
    SERVER,
    Line,
    RunError,
    files,
    offset_us,
    read,
    read_lines,
    reading,
)
from watch.tracks import Process, Slice, chrome, side_by_side, tracks


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
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            runs = [json.loads(line)["run"] for line in file]
        return [_client(run) for run in runs if run["began_unix_s"] is not None]
    except (ValueError, LookupError, TypeError, EOFError) as error:
        raise RunError(f"{path} was not written by this version's client: {error!r}") from error


def _client(run: Line) -> Process:
    slices = []
    for outcome in run["outcomes"]:
        sent_us, left_us = _us(outcome["sent_s"]), _us(outcome["left_s"])
        parts = []
        if outcome["first_s"] is not None:
            first_us = _us(outcome["first_s"])
            parts = [Slice(sent_us, first_us, "until the first token")]
            parts += [Slice(first_us, left_us, "tokens come")]
        id = f"{run['name']}/{outcome['index']}"  # as Run.request_id of the client has it
        notes: dict[str, int | str] = {
            "request id": id,
            "tokens": outcome["output_tokens"] or 0,
            "end": outcome["failure"] or "complete",
        }
        if outcome["intended_s"] is not None:
            notes["sent late, µs"] = sent_us - _us(outcome["intended_s"])
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
        start_us, end_us = _us(line["start_s"]), _us(line["end_s"])
        id = line["request_id"]
        notes: dict[str, int | str] = {"request id": id, "status": line["status"]}
        parts = [
            Slice(_us(start_s), _us(end_s), f"attempt {n}: {upstream}", {}, (id,))
            for n, (upstream, start_s, end_s) in enumerate(line["attempts"], 1)
        ]
        slices.append(Slice(start_us, end_us, line["path"], notes, (id,), parts))
    return Process("router", side_by_side("requests", slices), offset_us=offset_us(head))


def _model_server(path: Path) -> Process:
    """A track for its iterations. The arrow of a request leads to the first one that it is in."""
    head, lines = read_lines(path)
    slices, known = [], set[str]()
    for n, (line, ids) in enumerate(_iterations(lines)):
        start_us, end_us = _us(line["start_s"]), _us(line["start_s"] + line["duration_s"])
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


def _us(s: float) -> int:
    return round(s * US)


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
