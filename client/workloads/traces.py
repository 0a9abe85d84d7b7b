"""Recorded traces: Azure LLM inference, BurstGPT, Mooncake, ServeGen as published, or a plain CSV.

A malformed line is refused with the file, the line and the expected content. Independent of prompts
(the traces contain none) and of the replay.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client.workloads.servegen import read_servegen
from client.workloads.spec import SpecError, allowed, build

_BLOCKS = 8  # of a trace that is resampled whole
Blocks = tuple[int, ...]  # ids of the prompt's blocks: equal ids, equal text
Row = tuple[float, int, int, Blocks]  # seconds, prompt tokens, output tokens
ROW = np.dtype([("at_s", "f8"), ("prompt_tokens", "i8"), ("output_tokens", "i8"), ("line", "i8")])


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """Which part of which file, and what is done to its clock.

    ``path`` is a file, for servegen a folder. ``window`` a/b keeps the seconds a <= t < b from the
    trace's first request (servegen: from its hour 0, of which it is played out); ``time_scale`` 0.5
    plays it twice as fast; ``dequantise`` spreads requests evenly at random over the tick (in
    seconds) their time was rounded to; ``model`` keeps one model of BurstGPT; ``resample``: each
    seed plays other parts of it, see `part`.
    """

    format: str
    path: str
    window: str | None = None
    limit: int | None = allowed(None, least=1)
    time_scale: float = allowed(1.0, above=0)
    dequantise: float = allowed(0.0, least=0)
    model: str | None = None
    resample: bool = False

    def __post_init__(self) -> None:
        formats = (*FORMATS, "servegen")
        if self.format not in formats:
            raise ValueError(f"format must be one of {', '.join(formats)}, not {self.format!r}")
        if self.model is not None and self.format != "burstgpt":
            raise ValueError("only burstgpt names a model for each request")
        self.bounds()

    def bounds(self) -> tuple[float, float]:
        if self.window is None:
            return 0.0, math.inf
        start, _, end = self.window.partition("/")
        try:
            low, high = float(start), float(end)
        except ValueError:
            raise ValueError(f"window must be START/END in seconds, not {self.window!r}") from None
        if not 0 <= low < high:
            raise ValueError(f"window must satisfy 0 <= start < end, not {self.window!r}")
        return low, high


@dataclass(frozen=True, slots=True, eq=False)
class LoadTrace:
    """``rows`` of `ROW` in order, from 0 on; ``note`` says which requests these are.

    ``blocks`` say which prompts begin alike, by the row's ``line``; None where the trace does not.
    """

    rows: npt.NDArray[Any]
    duration_s: float
    note: str
    blocks: Sequence[Blocks] | None = None


def read_trace(
    text: str, seed: np.random.SeedSequence, requests: int | None = None, *, resample: bool = False
) -> LoadTrace:
    """So many requests (None: all) of ``trace:azure,path=FILE,...``, with ``resample`` as if that
    were asked for there; SpecError names file, line and what was expected."""
    spec = build(text, {"trace": TraceSpec}, "arrivals")
    low, high = spec.bounds()
    rows, blocks, dropped = _collect(spec, seed)
    if not rows.size:
        without = f" ({dropped} dropped)" if dropped else ""
        raise SpecError(f"{spec.path} contains no request{without}")
    if spec.format != "servegen":
        rows["at_s"] -= rows["at_s"].min()
    if spec.dequantise:
        rows = _in_order(rows)
        rows["at_s"] += np.random.default_rng(seed).random(rows.size) * spec.dequantise
    rows = _in_order(rows)
    rows = rows[(rows["at_s"] >= low) & (rows["at_s"] < high)][: spec.limit]
    if not rows.size:
        raise SpecError(f"{spec.path}: no request lies in the window {spec.window}")
    rows["at_s"] = (rows["at_s"] - low) * spec.time_scale
    end = float(rows["at_s"][-1])
    if math.isfinite(high) and spec.limit is None:
        end = (high - low) * spec.time_scale
    note = f"{rows.size} requests kept, {dropped} dropped (failed, empty or of another model)"
    whole = LoadTrace(rows, end, note, blocks if spec.format == "mooncake" else None)
    if resample or spec.resample:
        return part(whole, requests, np.random.default_rng(seed.spawn(1)[0]))
    return whole if requests is None or requests >= rows.size else part(whole, requests, None)


def part(trace: LoadTrace, requests: int | None, rng: np.random.Generator | None) -> LoadTrace:
    """So many of its requests (None: as many as it has): the first, or those that `rng` draws.

    It draws blocks of consecutive requests, with replacement, from the trace closed to a circle
    (Politis and Romano, 1992). A block is as long as the part, but at most an eighth of the trace.
    Within a block the gaps, the lengths and their order are the trace's.
    """
    size = trace.rows.size
    n = requests or size
    rows, which = trace.rows[:n], f"the first {n}"
    if rng is not None:
        length = min(n, max(1, size // _BLOCKS))
        starts = rng.integers(size, size=-(-n // length))
        chosen = ((starts[:, None] + np.arange(length)) % size).ravel()[:n]
        gaps = np.diff(trace.rows["at_s"], prepend=-trace.duration_s / size)
        rows, which = trace.rows[chosen], f"{n}, drawn in blocks of {length},"
        times = np.cumsum(gaps[chosen])
        rows["at_s"] = times - times[0]
    return LoadTrace(rows, float(rows["at_s"][-1]), f"{which} of {trace.note}", trace.blocks)


def _collect(
    spec: TraceSpec, seed: np.random.SeedSequence
) -> tuple[npt.NDArray[Any], list[Blocks], int]:
    """The rows as they come, the blocks of each, and how many others were dropped."""
    blocks: list[Blocks] = []
    dropped = 0
    if spec.format == "servegen":
        played = read_servegen(Path(spec.path), seed, *spec.bounds())
        found: Iterator[Row | None] = ((*row, ()) for row in played)
    else:
        found = FORMATS[spec.format](Path(spec.path), spec.model)

    def kept() -> Iterator[tuple[float, int, int, int]]:
        nonlocal dropped
        for row in found:
            if row is None or row[1] < 1 or row[2] < 1:
                dropped += 1
            else:
                yield *row[:3], len(blocks)
                blocks.append(row[3])

    return np.fromiter(kept(), dtype=ROW), blocks, dropped


def _in_order(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows[np.argsort(rows["at_s"], kind="stable")]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from enumerate((line.rstrip("\r\n") for line in file), start=1)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None


def _table(
    path: Path, wanted: tuple[str, ...], expected: str, read: Callable[..., Row | None]
) -> Iterator[Row | None]:
    """The rows of a CSV file that ``read`` makes of the wanted columns."""
    lines = _lines(path)
    _, header = next(lines, (1, ""))
    names = [name.strip() for name in next(csv.reader([header]))]
    if not {*wanted} <= {*names}:
        raise SpecError(f"{path}:1: expected a header with {', '.join(wanted)}, found {header!r}")
    columns = [names.index(name) for name in wanted]
    for number, line in lines:
        if not line:
            continue
        fields = line.split(",")
        try:
            yield read(*(fields[column] for column in columns))
        except (ValueError, IndexError, TypeError):
            raise SpecError(
                f"{path}:{number}: expected '{expected}', found {line[:80]!r}"
            ) from None


def _finite(text: str | float) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def _azure(path: Path, model: str | None) -> Iterator[Row | None]:
    """TIMESTAMP,ContextTokens,GeneratedTokens; 2023 has seven fractional digits and no zone."""
    epoch: datetime | None = None

    def read(at: str, context: str, generated: str) -> Row:
        nonlocal epoch
        moment = datetime.fromisoformat(at)
        epoch = epoch or moment
        return (moment - epoch).total_seconds(), int(context), int(generated), ()

    wanted = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    yield from _table(path, wanted, "YYYY-MM-DD hh:mm:ss.fffffff,tokens,tokens", read)


def _burstgpt(path: Path, model: str | None) -> Iterator[Row | None]:
    """Timestamp in seconds; response tokens 0 mean a failed request, which is dropped."""

    def read(at: str, name: str, request: str, response: str) -> Row | None:
        row = _finite(at), int(request), int(response), ()
        return row if model is None or name == model else None

    wanted = ("Timestamp", "Model", "Request tokens", "Response tokens")
    yield from _table(path, wanted, "seconds,model,tokens,tokens,tokens,log type", read)


def _csv(path: Path, model: str | None) -> Iterator[Row | None]:
    """Arrival in seconds."""

    def read(at: str, prompt: str, output: str) -> Row:
        return _finite(at), int(prompt), int(output), ()

    wanted = ("arrival", "prompt_tokens", "output_tokens")
    yield from _table(path, wanted, "seconds,tokens,tokens", read)


def _mooncake(path: Path, model: str | None) -> Iterator[Row | None]:
    """JSON lines with timestamp in milliseconds, input_length and output_length in tokens.

    ``hash_ids``, where they are given, name the prompt's blocks.
    """
    for number, line in _lines(path):
        if not line:
            continue
        try:
            entry = json.loads(line)
            ids = tuple(entry.get("hash_ids", ()))
            at = _finite(entry["timestamp"] / 1000)
            row = at, entry["input_length"], entry["output_length"], ids
            counts = (row[1], row[2], *ids)
            if not all(type(n) is int for n in counts) or min(ids, default=0) < 0:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SpecError(
                f"{path}:{number}: expected "
                '{"timestamp": ms, "input_length": tokens, "output_length": tokens, ...}, '
                f"found {line[:80]!r}"
            ) from None
        yield row


FORMATS: dict[str, Callable[[Path, str | None], Iterator[Row | None]]] = {
    "azure": _azure,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
    "csv": _csv,
}
