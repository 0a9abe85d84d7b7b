"""Recorded runs as one trace, for ui.perfetto.dev or Chrome's viewer.

    python -m watch.trace FOLDER [--out trace.pftrace]

FOLDER holds a file for each server, written by `--record FOLDER/NAME.jsonl`. Each is a process of
the trace; servers on one machine share its clock. The extension of --out selects the format:
.pftrace is Perfetto's protobuf, .json Chrome's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from watch.runs import RunError, read_folder
from watch.tracks import chrome, perfetto, tracks

WRITERS = {".pftrace": perfetto, ".json": chrome}


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
        processes = [tracks(run.hello, run.frame) for run in read_folder(args.folder)]
        args.out.write_bytes(write(processes))
    except (RunError, OSError) as error:
        sys.exit(f"watch.trace: {error}")
    print(args.out)


if __name__ == "__main__":
    main()
