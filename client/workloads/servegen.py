"""A workload from ServeGen's published client profiles (alibaba/ServeGen, NSDI'26).

A folder holds, for each client i, ``chunk-i-trace.csv`` (no header: window start in s, requests/s,
CV, family, shape, scale) and ``chunk-i-dataset.json`` (window start -> token distributions as
text). The workload is the superposition of the clients, each a renewal process within a window.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from client.workloads.spec import SpecError, read_text

Floats = npt.NDArray[np.float64]
_WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    rate: float
    family: str
    shape: float


def read_servegen(
    folder: Path, seed: np.random.SeedSequence, low_s: float, high_s: float
) -> Iterator[tuple[float, int, int]]:
    """(seconds, prompt tokens, output tokens) of each request in low_s <= t < high_s, by client."""
    paths = sorted(folder.glob("chunk-*-trace.csv"), key=_number)
    if not paths:
        raise SpecError(f"{folder}: expected a folder with chunk-0-trace.csv and so on")
    for path in paths:
        client = _number(path)
        rng = np.random.default_rng(
            np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, client))
        )
        windows = [
            w for w in _windows(path) if w.start_s < high_s and w.start_s + _WINDOW_S > low_s
        ]
        if windows:
            yield from _play(windows, _dataset(folder, client), rng, low_s, high_s)


def _number(path: Path) -> int:
    found = re.match(r"chunk-(\d+)-", path.name)
    if found is None:
        raise SpecError(f"{path}: expected a name like chunk-0-trace.csv")
    return int(found.group(1))


def _windows(path: Path) -> Iterator[_Window]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split(",")
        try:
            start_s, rate = float(fields[0]), float(fields[1])
            family, shape = fields[3], float(fields[4])
            idle = rate == 0 and family == ""
            if len(fields) != 6 or not (idle or (rate > 0 and shape > 0)):
                raise ValueError
            if not idle and family not in ("Gamma", "Weibull"):
                raise ValueError
        except (ValueError, IndexError):
            raise SpecError(
                f"{path}:{number}: expected 'start s,requests/s,CV,Gamma|Weibull,shape,scale' or "
                f"an idle window 'start s,0,0,,0,0', found {line[:80]!r}"
            ) from None
        if not idle:
            yield _Window(start_s, rate, family, shape)


def _dataset(folder: Path, client: int) -> list[tuple[float, dict[str, tuple[Floats, Floats]]]]:
    """Token distributions of a client by window start: name -> (values, cumulated shares)."""
    path = folder / f"chunk-{client}-dataset.json"
    expected = '{"start s": {"input_tokens": "{tokens: share, ...}", "output_tokens": "..."}}'
    text = read_text(path)
    try:
        entries: dict[str, Any] = json.loads(text)
        made = []
        for start, fields in entries.items():
            laws = {name: _law(fields[name]) for name in ("input_tokens", "output_tokens")}
            if all(values.size for values, _ in laws.values()):
                made.append((float(start), laws))
    except (ValueError, KeyError, TypeError, SyntaxError, AttributeError):
        raise SpecError(f"{path}: expected {expected}") from None
    if not made:
        raise SpecError(f"{path}: contains no token distribution; expected {expected}")
    return sorted(made, key=lambda window: window[0])


def _law(text: str) -> tuple[Floats, Floats]:
    shares = ast.literal_eval(text)
    values = np.array(list(shares.keys()), dtype=np.float64)
    return values, np.cumsum(np.array(list(shares.values()), dtype=np.float64))


def _play(
    windows: list[_Window],
    dataset: list[tuple[float, dict[str, tuple[Floats, Floats]]]],
    rng: np.random.Generator,
    low_s: float,
    high_s: float,
) -> Iterator[tuple[float, int, int]]:
    for window in windows:
        times = window.start_s + _arrivals(window, rng)
        laws = next((law for start, law in reversed(dataset) if start <= window.start_s), None)
        laws = laws or dataset[0][1]
        prompt, output = (
            _draw(*laws[name], times.size, rng) for name in ("input_tokens", "output_tokens")
        )
        keep = (times >= low_s) & (times < high_s)
        yield from zip(
            times[keep].tolist(), prompt[keep].tolist(), output[keep].tolist(), strict=True
        )


def _arrivals(window: _Window, rng: np.random.Generator) -> Floats:
    """One window of a client's renewal process, entered at a random phase of its first gap.

    The shape gives the gaps' form and the stated rate their mean; the published scale of Weibull
    windows does not reproduce the published rate, so it is not used.
    """
    k = window.shape
    times = np.zeros(0)
    end = 0.0
    while end < _WINDOW_S:
        n = math.ceil(window.rate * _WINDOW_S) + 16
        if window.family == "Gamma":
            gaps = rng.gamma(k, 1 / (k * window.rate), n)
        else:
            gaps = rng.weibull(k, n) / (math.gamma(1 + 1 / k) * window.rate)
        if end == 0.0:
            gaps[0] *= rng.random()
        times = np.concatenate([times, end + np.cumsum(gaps)])
        end = float(times[-1])
    return times[times < _WINDOW_S]


def _draw(values: Floats, mass: Floats, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    at = np.searchsorted(mass, rng.random(n) * mass[-1], side="right")
    tokens: npt.NDArray[np.int64] = values[np.minimum(at, values.size - 1)].astype(np.int64)
    return tokens
