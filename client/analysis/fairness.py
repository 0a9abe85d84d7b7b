"""Fairness by size: how much longer a request took than it takes alone. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from client.analysis.statistics import Floats, jain

Rows = npt.NDArray[Any]  # of `client.analysis.figures.ROW`


@dataclass(frozen=True, slots=True)
class Isolated:
    """E2E of a request alone: base + per prompt token + per output token, in seconds."""

    base_s: float
    prompt_s: float
    output_s: float

    def e2e_s(self, prompt_tokens: Floats, output_tokens: Floats) -> Floats:
        return self.base_s + self.prompt_s * prompt_tokens + self.output_s * output_tokens


def fit_isolated(rows: Rows) -> Isolated:
    """Fit it to requests that ran alone, each weighted by 1/E2E; no coefficient is negative."""
    from scipy.optimize import nnls  # a fifth of a second, which few commands need

    done = rows[rows["ok"]]
    if len(done) < 3:
        raise ValueError("at least three responses are needed to know the isolated latency")
    e2e = done["end_s"] - done["sent_s"]
    prompt, output = (np.nan_to_num(done[f"{kind}_tokens"]) for kind in ("prompt", "output"))
    design = np.column_stack([np.ones(len(done)), prompt, output])
    if not prompt.all():
        design[:, 1] = 0
    coefficients, _ = nnls(design / e2e[:, None], np.ones(len(done)))
    return Isolated(*(float(c) for c in coefficients))


@dataclass(frozen=True, slots=True)
class SizeBucket:
    """Slowdown of the requests whose output lengths lie in low..high."""

    low: int
    high: int
    n: int
    mean: float


@dataclass(frozen=True, slots=True)
class Fairness:
    """Slowdown = E2E / E2E alone, by size. ``jain`` is over the buckets' means: 1 is fair."""

    buckets: tuple[SizeBucket, ...]
    jain: float


def fairness(rows: Rows, isolated: Isolated, buckets: int = 5) -> Fairness | None:
    """Slowdown by output length, in buckets of equal numbers; None below five answers a bucket."""
    done = rows[rows["ok"]]
    if len(done) < 5 * buckets:
        return None
    prompt, output = (np.nan_to_num(done[f"{kind}_tokens"]) for kind in ("prompt", "output"))
    slowdown = (done["end_s"] - done["origin_s"]) / isolated.e2e_s(prompt, output)
    parts = np.array_split(np.argsort(output, kind="stable"), buckets)
    made = tuple(
        SizeBucket(
            int(output[part].min()),
            int(output[part].max()),
            part.size,
            float(slowdown[part].mean()),
        )
        for part in parts
    )
    return Fairness(made, jain(np.array([b.mean for b in made])))
