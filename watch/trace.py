"""Recorded runs as one trace, for ui.perfetto.dev or Chrome's viewer.

    python -m watch.trace FOLDER [--out trace.pftrace]

FOLDER holds a file for each server, router and model server, written by `--record
FOLDER/NAME.jsonl`, and what a client wrote with `--out FOLDER`. Each is a process of the trace, on
the wall clock; arrows follow a request through all of them. The ending of --out decides the
format: .pftrace is Perfetto's protobuf, .json Chrome's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from watch.processes import client, model_server, router
from watch.runs import CLIENT, MODEL_SERVER, ROUTER, SERVER, RunError, files, read
from watch.tracks import Process, chrome, perfetto, tracks

WROTE = (CLIENT, ROUTER, SERVER, MODEL_SERVER)
WRITERS = {".pftrace": perfetto, ".json": chrome}


def read_processes(folder: Path) -> list[Process]:
    """In the order in which a request meets them. Raises RunError."""
    found = {kind: [path for of, path in files(folder) if of == kind] for kind in WROTE}
    processes = [process for path in found[CLIENT] for process in client(path)]
    processes += map(router, found[ROUTER])
    for run in map(read, found[SERVER]):
        processes.append(tracks(run.hello, run.frame, run.offset_us))
    processes += map(model_server, found[MODEL_SERVER])
    if not processes:
        raise RunError(
            f"{folder} has nothing to trace; a server writes it with --record {folder}/NAME.jsonl"
        )
    return processes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path("trace.pftrace"), help="default: %(default)s"
    )
    args = parser.parse_args(arguments)
    write = WRITERS.get(args.out.suffix)
    if write is None:
        parser.error(f"--out ends in {args.out.suffix!r}; allowed: {', '.join(WRITERS)}")
    try:
        args.out.write_bytes(write(read_processes(args.folder)))
    except (RunError, OSError) as error:
        sys.exit(f"watch.trace: {error}")
    print(args.out)


if __name__ == "__main__":
    main()
