"""Recorded traces: Azure LLM inference, BurstGPT and Mooncake as published, or a plain CSV.

A malformed line is refused with the file, the line and the expected content. Independent of prompts
(the traces contain none) and of the replay.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from client.workloads.spec import MOST, Count, Least0, SpecError, build

_BLOCKS = 8  # of a trace that is resampled whole
Blocks = tuple[int, ...]  # ids of the prompt's blocks: equal ids, equal text
Row = tuple[float, int, int]  # seconds, prompt tokens, output tokens
ROW = np.dtype([("at_s", "f8"), ("prompt_tokens", "i8"), ("output_tokens", "i8"), ("line", "i8")])


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """Which part of which file, and what is done to its clock.

    ``window`` a/b keeps the seconds a <= t < b from the trace's first request; ``dequantise``
    spreads requests evenly at random over the tick (in seconds) their time was rounded to;
    ``resample``: each seed plays other parts of it, see `part`; ``most_tokens`` drops requests
    whose prompt and output have more together, such as those beyond a model's context.
    """

    format: Literal["azure", "burstgpt", "mooncake", "csv"]
    path: str
    window: str = "0/inf"
    dequantise: Least0 = 0.0
    resample: bool = False
    most_tokens: Count | None = None

    def __post_init__(self) -> None:
        try:
            low, high = self.bounds()
        except ValueError:
            low = high = math.nan
        if not 0 <= low < high:
            raise ValueError(f"window must be START/END in seconds, not {self.window!r}")

    def bounds(self) -> tuple[float, float]:
        low, high = map(float, self.window.split("/"))
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
    blocks: list[Blocks] = []
    read = _rows(spec.format, Path(spec.path), blocks)
    rows = np.fromiter(((*row, number) for number, row in enumerate(read)), dtype=ROW)
    kept = (rows["prompt_tokens"] >= 1) & (rows["output_tokens"] >= 1)
    dropped, rows = f"{int((~kept).sum())} dropped (failed or empty)", rows[kept]
    rows["at_s"] -= rows["at_s"].min(initial=math.inf)
    if spec.most_tokens is not None:
        fits = rows["prompt_tokens"] + rows["output_tokens"] <= spec.most_tokens
        dropped += f", {int((~fits).sum())} dropped (more than {spec.most_tokens} tokens)"
        rows = rows[fits]
    if not rows.size:
        raise SpecError(f"{spec.path} contains no request: {dropped}")
    if spec.dequantise:
        rows = rows[np.argsort(rows["at_s"], kind="stable")]
        rows["at_s"] += np.random.default_rng(seed).random(rows.size) * spec.dequantise
    rows = rows[np.argsort(rows["at_s"], kind="stable")]
    rows = rows[(rows["at_s"] >= low) & (rows["at_s"] < high)]
    if not rows.size:
        raise SpecError(f"{spec.path}: no request lies in the window {spec.window}")
    rows["at_s"] -= low
    end = high - low if math.isfinite(high) else float(rows["at_s"][-1])
    note = f"{rows.size} requests kept, {dropped}"
    whole = LoadTrace(rows, end, note, blocks or None)
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


def _seconds(text: str | float) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def _moment(text: str) -> float:
    """Azure's of 2023 have seven fractional digits and no zone, which counts as UTC."""
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _time(text: str) -> float:
    try:
        return _seconds(text)
    except ValueError:
        return _moment(text)


# the columns of a request's time, prompt tokens and output tokens, how its time is read, and a line
_FORMATS: dict[str, tuple[tuple[str, str, str], Callable[[Any], float], str]] = {
    "azure": (
        ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _moment,
        "YYYY-MM-DD hh:mm:ss.fffffff,tokens,tokens",
    ),
    "burstgpt": (
        ("Timestamp", "Request tokens", "Response tokens"), _seconds,
        "seconds,model,tokens,tokens,tokens,log type",
    ),
    "mooncake": (
        ("timestamp", "input_length", "output_length"), lambda ms: _seconds(ms / 1000),
        '{"timestamp": ms, "input_length": tokens, "output_length": tokens, ...}',
    ),
    "csv": (
        ("arrival", "prompt_tokens", "output_tokens"), _time,
        "seconds or YYYY-MM-DDThh:mm:ss,tokens,tokens",
    ),
}  # fmt: skip


def _rows(kind: str, path: Path, blocks: list[Blocks]) -> Iterator[Row]:
    """As they come, and to `blocks` what a trace names; failed requests have no output tokens."""
    columns, time_of, expected = _FORMATS[kind]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = ((n, line.rstrip("\r\n")) for n, line in enumerate(file, start=1))
            header: list[str] = []
            if kind != "mooncake":
                _, first = next(lines, (1, ""))
                header = [name.strip() for name in next(csv.reader([first]))]
                if not {*columns} <= {*header}:
                    raise SpecError(
                        f"{path}:1: expected a header with {', '.join(columns)}, found {first!r}"
                    )
            for number, line in lines:
                if not line:
                    continue
                try:
                    entry = dict(zip(header, line.split(","), strict=False)) or json.loads(line)
                    at, *tokens = (entry[column] for column in columns)
                    if header:
                        prompt, output = map(int, tokens)
                    else:
                        prompt, output = _whole(tokens)
                        blocks.append(_whole(entry.get("hash_ids", ())))
                    if max(prompt, output) > MOST:
                        raise ValueError
                    yield time_of(at), prompt, output
                except (
                    ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
                    RecursionError,
                ):  # fmt: skip
                    raise SpecError(
                        f"{path}:{number}: expected '{expected}', found {line[:80]!r}"
                    ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None


def _whole(numbers: Sequence[Any]) -> tuple[int, ...]:
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError
    return tuple(numbers)
