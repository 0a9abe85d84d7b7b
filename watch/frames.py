"""The data that viewers receive, as JSON: a `hello`, then frames. The page, the recorded runs, the
traces and the film all read this format.

    hello    the server: mode, policy, model, slots of the batch, blocks of KV memory
    frame    everything recorded since the previous frame

Times are whole microseconds of the server's clock. Lists have fixed columns, named below. A request
that does the same in several consecutive iterations is one *run*, so the size of a frame depends on
what changes, not on the number of computed rows.

Recorded runs are read into it: files that `--record FILE` wrote, or those that ship with the page.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import msgspec
from typing_extensions import TypedDict

from engine.lifecycle import Arrived, Ended, Event
from seams import KINDS, IterationRecord, Rows
from telemetry.recording import event_of

US = 1_000_000
SAFE = 2**53  # JavaScript's numbers are exact below


class Hello(TypedDict):
    mode: str
    policy: str
    model: str
    slots: int  # of the batch
    blocks: int
    block_tokens: int
    text: bool  # whether texts are available
    chat_template: NotRequired[bool]  # whether the model has one of its own; not in recordings


class IterationColumns(NamedTuple):
    """A row of `frame["iterations"]`; the first has the number `frame["first"]`."""

    start_us: int
    duration_us: int
    generated: int  # generated tokens
    tokens: int  # computed, without padding
    padding: int  # computed positions of padding
    waiting: int
    used: int  # blocks
    cached: int
    free: int


class RunColumns(NamedTuple):
    """A row of `frame["runs"]`."""

    request: int
    slot: int
    kind: int  # index of seams.KINDS
    first: int  # number of its first iteration
    length: int  # iterations
    tokens: int  # computed in all of them, accepted drafts included
    accepted: int = 0  # drafts
    rejected: int = 0


class ArrivedColumns(NamedTuple):
    request: int
    at_us: int
    prompt_tokens: int
    max_tokens: int
    service_class: str
    request_id: str | None = None
    user: int | None = None  # as are programs: a hash, of which a page's numbers hold a part
    program: int | None = None
    priority: int = 0


class EndedColumns(NamedTuple):
    request: int
    end: str
    arrival_us: int
    admitted_us: int | None
    first_token_us: int | None
    end_us: int
    generated: int


class Frame(TypedDict):
    now: int
    first: int
    iterations: Sequence[IterationColumns]
    runs: Sequence[RunColumns]
    arrived: Sequence[ArrivedColumns]
    ended: Sequence[EndedColumns]
    preempted: Sequence[tuple[int, int]]  # (iteration before which, request)
    stats: NotRequired[Mapping[str, Any]]


def make_frame(events: Iterable[Event], first: int, now_s: float) -> Frame:
    """`first`: the number of the first iteration among the events."""
    iterations: list[IterationColumns] = []
    arrived: list[ArrivedColumns] = []
    ended: list[EndedColumns] = []
    preempted: list[tuple[int, int]] = []
    rows: list[Rows] = []
    for event in events:
        match event:
            case IterationRecord():
                preempted += [(first + len(iterations), id) for id in event.preempted]
                rows.append(event.rows)
                iterations.append(
                    IterationColumns(
                        in_us(event.start_s),
                        in_us(event.duration_s),
                        event.num_generated,
                        event.num_tokens,
                        event.padding,
                        event.num_waiting,
                        event.used_blocks,
                        event.cached_blocks,
                        event.free_blocks,
                    )
                )
            case Arrived():
                arrived.append(
                    ArrivedColumns(
                        event.request,
                        in_us(event.at_s),
                        event.prompt_tokens,
                        event.max_tokens,
                        event.service_class,
                        event.request_id,
                        event.user % SAFE or None,
                        None if event.program is None else event.program % SAFE,
                        event.priority,
                    )
                )
            case Ended(record=record):
                ended.append(
                    EndedColumns(
                        event.request,
                        record.end,
                        in_us(record.arrival_s),
                        None if record.admitted_s is None else in_us(record.admitted_s),
                        None if record.first_token_s is None else in_us(record.first_token_s),
                        in_us(record.end_s),
                        record.generated,
                    )
                )
    return {
        "now": in_us(now_s),
        "first": first,
        "iterations": iterations,
        "runs": _runs(rows, first),
        "arrived": arrived,
        "ended": ended,
        "preempted": preempted,
    }


def in_us(s: float) -> int:
    return round(s * US)


def _runs(rows: Sequence[Rows], first: int) -> list[RunColumns]:
    """Most iterations have the rows of the previous one; these take one comparison each. A row with
    other drafts than before begins a new run, so that each advance is seen."""
    runs: list[RunColumns] = []
    newest: dict[int, int] = {}  # slot -> index of its newest run
    n = first
    for row, same in groupby(rows):
        times = sum(1 for _ in same)
        for each in row:
            slot = each.slot
            run = RunColumns(
                each.request,
                slot,
                KINDS.index(each.kind),
                n,
                times,
                each.num_tokens * times,
                each.accepted * times,
                each.rejected * times,
            )
            before = runs[newest[slot]] if slot in newest else None
            if (
                before is not None
                and (before.request, before.kind) == (run.request, run.kind)
                and before.first + before.length == n
                and before.accepted == each.accepted * before.length
                and before.rejected == each.rejected * before.length
            ):
                both = map(add, before[4:], run[4:])  # lengths, tokens and drafts
                runs[newest[slot]] = RunColumns(*before[:4], *both)
            else:
                newest[slot] = len(runs)
                runs.append(run)
        n += times
    return runs


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
    except (ValueError, LookupError, TypeError, EOFError) as error:
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
