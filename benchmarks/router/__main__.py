"""The cost of the router, compared with text-inference-batcher and LiteLLM's proxy in the same run.

    python -m benchmarks.router                               # the router against no router
    python -m benchmarks.router --litellm --tib DIR           # with its peers

Loopback, one process each, one null upstream that responds at once. Three parts: `closed` (requests
per second at 16 connections, latency at 1; sent by `wrk`, a package of Debian's), `added`
(latency at 200 requests/s and, in turn, the same load on the upstream itself), `streams` (2,000
streams at 5 tokens/s). Targets take turns, and ratios are taken within a round.
"""

import asyncio
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.report import machine, options, save, table
from benchmarks.harness.turns import in_turns, ratio
from benchmarks.router import loads, targets
from benchmarks.router.targets import Target


def closed(everyone: list[Target], rounds: int, seconds: float) -> dict[str, Any]:
    """Throughput at 16 connections and latency at one, by target; ratios are router / target."""

    def turn(target: Target) -> dict[str, float]:
        many = loads.closed_loop(target, 16, seconds)
        one = loads.closed_loop(target, 1, seconds)
        row = {
            "requests_per_s": many.requests_per_s,
            "p99_ms_16": many.p99_ms,
            "p50_ms_1": one.p50_ms,
            "p99_ms_1": one.p99_ms,
            "failed": many.failed + one.failed,
        }
        print(f"{target.name}: {row}", file=sys.stderr)
        return row

    rows = in_turns({target.name: partial(turn, target) for target in everyone}, rounds)
    out: dict[str, Any] = {}
    for target in everyone:
        mine, its = rows["router"], rows[target.name]
        compared = ratio(*([row["requests_per_s"] for row in side] for side in (mine, its)))
        medians = {k: statistics.median(r[k] for r in its) for k in its[0]}
        out[target.name] = {
            "version": target.version,
            **medians,
            "failed": sum(r["failed"] for r in its),
            "router_over_this": asdict(compared),
            "told": "" if target.name == "router" else str(compared),
            "rounds": its,
        }
    return out


def added(null: Target, router: Target, rounds: int, seconds: float) -> dict[str, Any]:
    """The router's added latency at 200 requests/s, percentile by percentile, pooled over
    rounds."""
    direct: list[float] = []
    routed: list[float] = []
    for _ in range(rounds):
        found = asyncio.run(loads.open_loop([null, router], 200, seconds))
        direct += found[null.name]
        routed += found[router.name]
    out: dict[str, Any] = {"rate": 200, "requests": len(routed)}
    for percent in (50, 95, 99):
        with_it, without = (
            loads.percentile_ms(routed, percent),
            loads.percentile_ms(direct, percent),
        )
        out[f"p{percent}_ms"] = {"direct": without, "routed": with_it, "added": with_it - without}
    return out


def card(result: dict[str, Any]) -> str:
    rows = [
        (
            f"{name} {row['version']}", f"{row['requests_per_s']:,.0f}",
            f"{row['p99_ms_16']:.1f}", f"{row['p50_ms_1']:.2f}", f"{row['p99_ms_1']:.2f}",
            f"{row['failed']:.0f}", row["told"],
        )
        for name, row in result["closed"].items()
    ]  # fmt: skip
    columns = (
        "target | requests/s, 16 connections: | p99 ms: | p50 ms, 1 connection: | p99 ms: "
        "| not 200: | router / this:"
    )
    a, s, direct = result["added"], result["streams"], result["streams_direct"]
    latencies = [
        (p, *(f"{a[f'{p}_ms'][k]:.2f}" for k in ("direct", "routed", "added")))
        for p in ("p50", "p95", "p99")
    ]
    return "\n\n".join((
        f"{machine()}, shared by load, proxy and upstream. Command: `{result['command']}`.",
        f"Closed loop by wrk, medians of {result['rounds']} rounds. The ratio is"
        " router / this within a round: the geometric mean and its 95 % interval.",
        table(columns, rows),
        f"Open loop, {a['rate']} requests/s each way in turns, {a['requests']} requests:",
        table("| direct, ms: | through the router, ms: | added, ms:", latencies),
        f"{s['streams']} streams at {s['rate']} tokens/s together: {s['whole']} complete,"
        f" {s['events']:,} of {s['events_due']:,} events; the router's peak memory"
        f" {s['rss_mb']:.0f} MB, {s['cpu_cores']:.2f} cores; p99 of the last event's lag behind"
        f" its pace {s['lag_p99_ms']:.0f} ms, without the router"
        f" {direct['lag_p99_ms']:.0f} ms.",
    ))  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default: 5)")
    parser.add_argument("--streams", type=int, default=2000, help="streams (default: 2000)")
    parser.add_argument("--tokens", type=int, default=60, help="tokens a stream (default: 60)")
    parser.add_argument("--tib", type=Path, help="a built checkout of text-inference-batcher")
    parser.add_argument(
        "--litellm",
        action="store_true",
        help=f"LiteLLM's proxy too; installs {targets.LITELLM} into {targets.VENV} on first use",
    )
    args = parser.parse_args()
    command = ["python -m benchmarks.router", *sys.argv[1:]]
    if args.tib:
        command = [word if word != str(args.tib) else "DIR" for word in command]
    result: dict[str, Any] = {"command": " ".join(command), "rounds": args.rounds}
    with ExitStack() as stack:
        null = stack.enter_context(targets.null_upstream())
        router = stack.enter_context(targets.ours(null))
        everyone = [null, router]
        with ExitStack() as peers:
            if args.tib:
                tib = targets.text_inference_batcher(args.tib, null)
                everyone.append(peers.enter_context(tib))
            if args.litellm:
                everyone.append(peers.enter_context(targets.litellm(null)))
            result["closed"] = closed(everyone, args.rounds, args.seconds)
        result["added"] = added(null, router, args.rounds, args.seconds)
        for name, target in (("streams_direct", null), ("streams", router)):
            found = asyncio.run(loads.many_streams(target, args.streams, 5, args.tokens))
            result[name] = {"rate": 5, **asdict(found)}
    save(result, card(result), args.out, "router")


if __name__ == "__main__":
    main()
