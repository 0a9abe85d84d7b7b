"""Whole runs on disk: every request with every delivery, so that figures can be computed again.

One line of JSON for each run, compressed; times in whole microseconds, deliveries as differences
from the previous one. The workloads are in files of the same folder: ``workload.jsonl``, or those
in ``workloads/``.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from client.load.records import Outcome, Run
from client.workloads.workload_file import Workload, read_workload

RUNS = "runs.jsonl.gz"
_TIMES = ("intended_s", "sent_s", "first_s", "end_s", "left_s")


class RawError(ValueError):
    """A file of runs that cannot be read."""


def write_raw(folder: Path, runs: Iterable[tuple[dict[str, Any], Run]]) -> None:
    """Each run with further facts about it, which must be JSON."""
    with gzip.GzipFile(folder / RUNS, "wb", mtime=0) as file:
        for about, run in runs:
            file.write(json.dumps({**about, "run": _as_json(run)}).encode() + b"\n")


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
                yield about, _as_run(run, workloads[run.pop("workload_sha256")])
    except OSError as error:
        raise RawError(f"{path}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, EOFError) as error:
        raise RawError(f"{path}: not a file of runs that this version wrote: {error}") from None


def _as_json(run: Run) -> dict[str, Any]:
    outcomes = []
    for o in run.outcomes:
        fields = {name: getattr(o, name) for name in Outcome.__slots__ if name != "deliveries"}
        fields |= {name: _us(fields[name]) for name in _TIMES}
        at = [round(t * 1e6) for t, _ in o.deliveries]
        fields["steps"] = [b - a for a, b in itertools.pairwise([0, *at])]
        tokens = [n for _, n in o.deliveries]
        fields["tokens"] = None if set(tokens) <= {1} else tokens
        outcomes.append(fields)
    return {
        **{name: getattr(run, name) for name in Run.__slots__ if name not in _LARGE},
        "workload_sha256": run.workload.sha256,
        "in_flight": [[_us(t), n] for t, n in run.in_flight],
        "outcomes": outcomes,
    }


_LARGE = ("workload", "outcomes", "in_flight")


def _as_run(fields: dict[str, Any], workload: Workload) -> Run:
    outcomes = []
    for o in fields.pop("outcomes"):
        o |= {name: None if o[name] is None else o[name] / 1e6 for name in _TIMES}
        at = list(itertools.accumulate(o.pop("steps")))
        tokens = o.pop("tokens") or [1] * len(at)
        o["deliveries"] = tuple((t / 1e6, n) for t, n in zip(at, tokens, strict=True))
        outcomes.append(Outcome(**o))
    samples = tuple((t / 1e6, n) for t, n in fields.pop("in_flight"))
    return Run(workload=workload, outcomes=tuple(outcomes), in_flight=samples, **fields)


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
