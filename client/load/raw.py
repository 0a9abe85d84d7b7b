"""Whole runs on disk: every request with every delivery, so that figures can be computed again.

One line of JSON for each run, compressed. The workloads are in files of the same folder:
``workload.jsonl``, or those in ``workloads/``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from client.load.records import Outcome, Run
from client.workloads.workload_file import read_workload

RUNS = "runs.jsonl.gz"


class RawError(ValueError):
    """A file of runs that cannot be read."""


def write_raw(folder: Path, runs: Iterable[tuple[dict[str, Any], Run]]) -> None:
    """Each run with further facts about it, which must be JSON."""
    with gzip.GzipFile(folder / RUNS, "wb", mtime=0) as file:
        for about, run in runs:
            fields = {name: getattr(run, name) for name in Run.__slots__}
            fields["workload"] = run.workload.sha256
            fields["outcomes"] = [
                {name: getattr(o, name) for name in Outcome.__slots__} for o in run.outcomes
            ]
            file.write(json.dumps({**about, "run": fields}).encode() + b"\n")


def read_raw(folder: Path) -> Iterator[tuple[dict[str, Any], Run]]:
    """The runs in a folder. RawError or WorkloadError say what is wrong."""
    path = folder / RUNS
    files = [*folder.glob("workload.jsonl"), *sorted(folder.glob("workloads/*.jsonl"))]
    workloads = {w.sha256: w for w in map(read_workload, files)}
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                about = json.loads(line)
                run = about.pop("run")
                for values in run["outcomes"]:
                    values["deliveries"] = tuple(map(tuple, values["deliveries"]))
                outcomes = tuple(Outcome(**values) for values in run["outcomes"])
                samples = tuple((at_s, n) for at_s, n in run["in_flight"])
                workload = workloads[run["workload"]]
                run |= {"workload": workload, "outcomes": outcomes, "in_flight": samples}
                yield about, Run(**run)
    except OSError as error:
        raise RawError(f"{path}: {error.strerror or error}") from None
    except (
        ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, zlib.error
    ) as error:  # fmt: skip
        raise RawError(f"{path}: not a file of runs that this version wrote: {error}") from None
