"""How fast the load generator is: a million arrivals, describing them, a trace, its live limit.

python -m benchmarks.client.speed
python -m benchmarks.client.speed --self-test   # a minute longer: the live limit
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.report import machine, options, save, table
from client.load.machine import commit, versions
from client.selftest import self_test
from client.workloads.arrivals import horizon, parse_arrivals
from client.workloads.burstiness import describe
from client.workloads.traces import read_trace

N = 1_000_000
SHAPES = (
    "constant", "poisson", "gamma:cv=3", "weibull:cv=3", "mmpp", "ramp", "burst", "plan:low",
    "plan:medium", "plan:high", "plan:outer=zipf,inner=gaussian,a2=0.2,idc=50",
)  # fmt: skip


def shapes() -> list[dict[str, Any]]:
    found = []
    for shape in SHAPES:
        process = parse_arrivals(shape)
        start_s = time.perf_counter()
        times = process.unit_times(N, np.random.SeedSequence(0))
        made_s = time.perf_counter()
        describe(times, horizon(process, times))
        done_s = time.perf_counter()
        figures = {"make_s": round(made_s - start_s, 3), "describe_s": round(done_s - made_s, 3)}
        found.append({"shape": shape, **figures})
    return found


def azure() -> float:
    """Reading a trace of a million lines in the format of 2023, written here."""
    rng = np.random.default_rng(0)
    at = datetime(2023, 11, 16, 18, 15, 46)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "azure.csv"
        with path.open("w") as file:
            file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
            sizes = rng.integers(1, 2000, (N, 2)).tolist()
            for gap, (prompt, output) in zip(rng.exponential(0.1, N).tolist(), sizes, strict=True):
                at += timedelta(seconds=gap)
                file.write(f"{at:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}\n")
        start = time.perf_counter()
        trace = read_trace(f"trace:azure,path={path}", np.random.SeedSequence(0))
        took = time.perf_counter() - start
    assert trace.times.size == N
    return round(took, 3)


def main() -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--self-test", action="store_true", help="also send to a null server")
    args = parser.parse_args()
    figures: dict[str, Any] = {"requests": N, "shapes": shapes(), "azure_read_s": azure()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures["peak_memory_gib"] = round(peak, 3)
    if args.self_test:
        caught = io.StringIO()
        with contextlib.redirect_stdout(caught):
            self_test(as_json=True)
        figures["self_test"] = json.loads(caught.getvalue())["self_test"]
    rows = [tuple(shape.values()) for shape in figures["shapes"]]
    card = (
        f"{N} arrivals on {machine()}\n\n{table('shape | make, s: | describe, s:', rows)}"
        f"\n\nReading an Azure trace of {N} lines took {figures['azure_read_s']} s; peak memory "
        f"{peak:.2f} GiB."
    )
    save(figures | {"versions": versions(), "commit": commit()}, card, args.out, "speed")


if __name__ == "__main__":
    main()
