"""How much load this client can hold on this machine, measured against a null server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from client.analysis.gates import judge
from client.analysis.metrics import measure
from client.analysis.statistics import percentile
from client.comparison.fleet import Fleet
from client.load.live import say
from client.load.machine import ROOT, machine, versions
from client.load.servers.processes import System
from client.workloads.recipe import Recipe, make

GAP_S = 0.1
STREAMS = ((300, 34), (600, 10), (70, 140))  # requests a second, tokens each at 10 tokens a second
SECONDS = 12.0
LIFETIMES = 2.5  # streams are sent for at least so many of their own durations: the load levels off


def self_test(
    *,
    as_json: bool,
    workers: int = 1,
    keep_alive: bool = False,
    streams: Sequence[tuple[int, int]] = STREAMS,
    seconds: float = SECONDS,
) -> int:
    """Send streams at several rates, for each process of the client; returns 0 if all were on time.

    The null server has as many processes as the client. The last line is JSON on request.
    Raises ServerError, and KeyboardInterrupt, since half a run shows nothing.
    """
    found = []
    # -P: the folder of the script has modules with the names of others
    script = ROOT / "client" / "load" / "nullserver.py"
    command = (
        sys.executable, "-P", str(script), "--gap-s", str(GAP_S), "--processes", str(workers),
    )  # fmt: skip
    null = System("null", command, None)
    recipe = Recipe(prompts="request")
    with Fleet(recipe, None, 60.0, together=True, workers=workers, keep_alive=keep_alive) as fleet:
        say(f"{fleet.cores}; processes of the client: {workers}")
        for rate, tokens in ((rate * workers, tokens) for rate, tokens in streams):
            count = round(rate * max(seconds, LIFETIMES * tokens * GAP_S))
            asked = replace(recipe, requests=count, rate=rate, output_tokens=f"fixed:{tokens}")
            run = fleet.play(null, make(asked), f"{rate} requests/s")
            m = measure(run, cut_s=tokens * GAP_S)  # then the load has levelled off
            verdict, added = judge(run, m), percentile(m.latencies["ttft"], 99) or 0
            line: dict[str, Any] = {
                "requests_per_s": rate,
                "tokens_each": tokens,
                "streams_at_once": int(m.requests.in_flight(m.requests["sent_s"]).max()),
                "events_per_s": round(m.throughput),
                "dispatch_lag_p99_ms": round(1e3 * float(np.quantile(m.lag, 0.99)), 2),
                "ttft_added_p99_ms": round(1e3 * (added - GAP_S), 2),
                "verdict": verdict.word,
            }
            found.append(line)
            told = (f"{name.replace('_', ' ')} {value}" for name, value in line.items())
            say(f"{', '.join(told)} {verdict.reason}")
    if as_json:
        figures = {"self_test": found, "workers": workers, "cores": asdict(fleet.cores)}
        print(json.dumps({**figures, "machine": machine(), "versions": versions()}))
    return 0 if all(line["verdict"] == "VALID" for line in found) else 1
