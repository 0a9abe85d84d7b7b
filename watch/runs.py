"""Reads recorded runs: files that `--record FILE` wrote, or those that ship with the page."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from telemetry.recording import event_of
from watch.frames import US, Frame, Hello, make_frame

RECORDED = Path(__file__).parent / "page" / "recorded"
ORDER = ("nobatch", "static", "dynamic")


class RunError(Exception):
    """A folder or a file without a run; the message names it and says what is expected."""


Line = Mapping[str, Any]
SERVER, ROUTER, MODEL_SERVER, CLIENT = "server", "router", "model server", "client"


@dataclass(frozen=True, slots=True)
class Recorded:
    hello: Hello
    frame: Frame
    offset_us: int = 0  # what the wall clock is ahead of the frame's, where that is known


def files(folder: Path) -> list[tuple[str | None, Path]]:
    """Which process wrote it, and the file. Raises RunError."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder")
    paths = sorted(path for end in ("*.jsonl", "*.json", "*.jsonl.gz") for path in folder.glob(end))
    return [(_process_of(path), path) for path in paths]


def _process_of(path: Path) -> str | None:
    """None of what a client writes beside its runs."""
    if path.suffix == ".gz":
        return CLIENT
    with reading(path), path.open() as file:
        first = json.load(file) if path.suffix == ".json" else json.loads(next(file, "{}"))
        if path.suffix == ".json":
            return SERVER if "frame" in first else None
        if str(first.get("format", "")).startswith("effective-batching workload"):
            return None
        if first["type"] != "head":
            raise ValueError("the first line is not a head")
        process: str = first.get("process", SERVER)
        return process


def read_folder(folder: Path) -> list[Recorded]:
    """The runs of a folder's servers, in the order of the modes. Raises RunError."""
    paths = [path for process, path in files(folder) if process == SERVER]
    if not paths:
        raise RunError(
            f"{folder} contains no run; a server writes one with --record {folder}/NAME.jsonl"
        )
    runs = [read(path) for path in paths]
    return sorted(runs, key=lambda run: (*ORDER, run.hello["mode"]).index(run.hello["mode"]))


def read(path: Path) -> Recorded:
    """What a server wrote. Raises RunError."""
    with reading(path):
        if path.suffix == ".json":
            return msgspec.json.decode(path.read_bytes(), type=Recorded)
        return _recorded(*read_lines(path))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises RunError for a file that does not hold what it should."""
    try:
        yield
    except (ValueError, LookupError, TypeError, EOFError, msgspec.MsgspecError) as error:
        how = "by this version's client" if path.suffix == ".gz" else "by --record"
        raise RunError(f"{path} was not written {how}: {error!r}") from error


def read_lines(path: Path) -> tuple[Line, list[Line]]:
    """The head of a file, and what follows."""
    with path.open() as file:
        head = json.loads(next(file, "{}"))
        return head, [json.loads(line) for line in file]


def offset_us(head: Line) -> int:
    """What the wall clock is ahead of the file's."""
    offset_s: float = head["unix_s"] - head["clock_s"]
    return round(offset_s * US)


def _recorded(head: Line, lines: Sequence[Line]) -> Recorded:
    events = [event for line in lines if (event := event_of(line)) is not None]
    hello: Hello = {
        "mode": head["mode"],
        "policy": head["policy"],
        "model": head["model"],
        "slots": head["max_batch_size"],
        "blocks": head["blocks"],
        "block_tokens": head["block_tokens"],
        "text": False,
    }
    frame = make_frame(events, 0, 0.0)
    ends_us = [i.start_us + i.duration_us for i in frame["iterations"]]
    ends_us += [e.end_us for e in frame["ended"]]
    frame["now"] = max(ends_us, default=round(head["clock_s"] * US))
    return Recorded(hello, frame, offset_us(head))
