"""What the variance of output lengths alone predicts of dynamic batching over static batching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.analysis.comparison.results import Headline, Result
from client.analysis.comparison.scalars import batch_mean
from client.analysis.comparison.summary import final, is_sound
from client.analysis.statistics import Interval, expected_max


@dataclass(frozen=True, slots=True)
class Prediction:
    """The ratio of dynamic to static that length variance alone predicts, and the measured one."""

    batch: float
    predicted: float
    measured: Interval | None
    load: float


def length_variance_gain(results: Sequence[Result], found: Headline) -> Prediction | None:
    """E[max of B]/E[out] at the batch size that static really had at its limit, beside the ratio
    of the limits; None where static has none.

    A static batch computes until its longest row is done, so of B rows' slots only E[out]/E[max]
    are used (Orca, OSDI'22, 2). Padding, prefill and the speed of a slot are not included.
    """
    static = next((x for x in found.limits if x.system == "static"), None)
    if static is None:
        return None
    load = static.load
    mine = [r for r in final(results) if r.job.system == "static" and r.job.load == load]
    kept = [r for r in mine if is_sound(r)] or mine
    sizes = [size for r in kept if (size := batch_mean(r)) is not None]
    if not sizes or len(sizes) < len(kept):
        return None
    batch = float(np.mean(sizes))
    lengths = np.array(
        [request.output_tokens for r in kept for request in r.run.workload.requests],
        dtype=np.float64,
    )
    ratios = {(r.of, r.over): r.throughput for r in found.limit_ratios}
    measured = ratios.get(("dynamic", "static"))
    return Prediction(batch, expected_max(lengths, batch) / float(lengths.mean()), measured, load)
