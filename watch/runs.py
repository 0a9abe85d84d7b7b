"""Reads recorded runs: files that `--record FILE` wrote, or those that ship with the page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from watch.frames import (
    US,
    ArrivedColumns,
    EndedColumns,
    Frame,
    Hello,
    IterationColumns,
    RunColumns,
    event_of,
    make_frame,
)

RECORDED = Path(__file__).parent / "page" / "recorded"
ORDER = ("nobatch", "static", "dynamic")


class RunError(Exception):
    """A folder or a file without a run; the message names it and says what is expected."""


@dataclass(frozen=True, slots=True)
class Recorded:
    hello: Hello
    frame: Frame


def read_folder(folder: Path) -> list[Recorded]:
    """All runs of a folder, in the order of the modes. Raises RunError."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder")
    paths = sorted([*folder.glob("*.jsonl"), *folder.glob("*.json")])
    if not paths:
        raise RunError(
            f"{folder} holds no run; a server writes one with --record {folder}/NAME.jsonl"
        )
    runs = [read(path) for path in paths]
    return sorted(runs, key=lambda run: (*ORDER, run.hello["mode"]).index(run.hello["mode"]))


def read(path: Path) -> Recorded:
    """Raises RunError."""
    try:
        return _shipped(path) if path.suffix == ".json" else _lines(path)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not what --record writes: {error!r}") from error


def _shipped(path: Path) -> Recorded:
    told = json.loads(path.read_text())
    frame = told["frame"]
    return Recorded(
        told["hello"],
        {
            "now": frame["now"],
            "first": frame["first"],
            "preempted": frame["preempted"],
            "iterations": [IterationColumns(*row) for row in frame["iterations"]],
            "runs": [RunColumns(*row) for row in frame["runs"]],
            "arrived": [ArrivedColumns(*row) for row in frame["arrived"]],
            "ended": [EndedColumns(*row) for row in frame["ended"]],
        },
    )


def _lines(path: Path) -> Recorded:
    with path.open() as file:
        head = json.loads(next(file, "{}"))
        events = [event for line in file if (event := event_of(json.loads(line))) is not None]
    hello: Hello = {
        "mode": head["mode"],
        "policy": head["policy"],
        "model": head["model"],
        "lanes": head["max_batch_size"],
        "blocks": head["blocks"],
        "block_tokens": head["block_tokens"],
        "text": False,
    }
    frame = make_frame(events, 0, 0.0)
    ends_us = [i.start_us + i.duration_us for i in frame["iterations"]]
    ends_us += [e.end_us for e in frame["ended"]]
    frame["now"] = max(ends_us, default=round(head["clock_s"] * US))
    return Recorded(hello, frame)
