"""The command line of client.py: its options, and which of them go together.

An option that would have no effect is refused. Sends nothing and measures nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from client.load.play import SILENCE_S
from client.workloads.recipe import (
    SHAPE_OPTIONS,
    Recipe,
    add_shape_options,
    completed,
    has_rate,
    make,
    recipe_from,
)
from client.workloads.spec import SpecError, refuse_given
from client.workloads.workload_file import Workload, read_workload, until

SELECTIONS = ("normal", "range", "buckets")
RANGE_TOKENS = (1, 25, 100)
_SAMPLES = (
    "--numsamples", "--duration", "--wait", "--rate", "--selection", "--numtokens_range",
    *SHAPE_OPTIONS,
)  # fmt: skip
MOST_WORKERS = 64
_RUN = ("--warmup", "--no-stream", "--drain-s", "--slo", "--out", "--deferred-as-batch")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="client.py",
        description="Sends load to a server and reports the result. Without options: 100 requests, "
        "about one a second, lengths normal(100, 50) clipped to 1..200, then the server's stats.",
    )
    simple = p.add_argument_group("simple use")
    simple.add_argument("--prompt", help="send this one prompt and print the completion")
    simple.add_argument("--numtokens", type=int, help="tokens to generate for --prompt (10)")
    simple.add_argument(
        "--numsamples", type=int, metavar="N", help="number of requests (100; of a trace: all)"
    )
    simple.add_argument(
        "--duration", type=float, metavar="S", help="send for S seconds, instead of --numsamples"
    )
    simple.add_argument(
        "--wait", type=float, help="mean seconds between two requests (1.0; of a trace: its own)"
    )
    simple.add_argument(
        "--selection", choices=SELECTIONS,
        help="output lengths: normal (as above), range (values of --numtokens_range), buckets "
        "(5, 10, ... 145)",
    )  # fmt: skip
    simple.add_argument(
        "--numtokens_range", type=int, nargs="+", metavar="N",
        help=f"values to draw lengths from ({' '.join(map(str, RANGE_TOKENS))})",
    )  # fmt: skip
    load = p.add_argument_group("load")
    load.add_argument(
        "--workload", type=Path, help="send this workload file (python -m client.workload make)"
    )
    load.add_argument("--rate", type=float, help="requests a second, instead of --wait")
    load.add_argument(
        "--seed", type=int,
        help="seed of the workload (0); with --prompt: of the server's sampling (random)",
    )  # fmt: skip
    load.add_argument(
        "--target",
        help="server, instead of IP and PORT: http://host:port, openai+http://...?model=m, "
        "openai-chat+http://..., tgi+http://...",
    )
    load.add_argument(
        "--warmup", type=float, metavar="S",
        help="leave the first S seconds out of all figures (found by MSER-5 for steady loads)",
    )  # fmt: skip
    load.add_argument("--no-stream", action="store_true", help="request whole responses")
    load.add_argument(
        "--drain-s", type=float, help="seconds after the last send until requests are cut (never)"
    )
    load.add_argument(
        "--timeout-s", type=float,
        help=f"seconds of silence after which a request has failed ({SILENCE_S:g})",
    )  # fmt: skip
    load.add_argument(
        "--workers", type=int, metavar="N",
        help="processes that send, for servers faster than one process can read (1)",
    )  # fmt: skip
    load.add_argument(
        "--keep-alive", action="store_true",
        help="reuse connections (by default each request opens one, as independent users do)",
    )  # fmt: skip
    load.add_argument(
        "--deferred-as-batch", action="store_true",
        help="send the deferred requests as one job of /v1/batches, due at their last deadline",
    )  # fmt: skip
    out = p.add_argument_group("results")
    out.add_argument(
        "--slo", metavar="ttft:500ms,tpot:50ms,e2e:10s", help="objectives, for goodput"
    )
    out.add_argument("--out", type=Path, help="write report.html, pictures and raw data there")
    out.add_argument("--json", action="store_true", help="print all figures as JSON")
    out.add_argument("--self-test", action="store_true", help="measure the limit of this client")
    add_shape_options(p, Recipe())
    return p


def check(args: argparse.Namespace) -> None:
    """SpecError for an option that would have no effect, or has an impossible value."""
    one = ("--prompt", "--numtokens")
    if args.self_test:
        others = ("--workload", "--seed", "--target", "--timeout-s")
        refuse_given(args, (*one, *others, *_SAMPLES, *_RUN), "with --self-test")
    elif args.prompt is not None:
        several = ("--workload", "--workers", "--keep-alive", *_SAMPLES, *_RUN)
        refuse_given(args, several, "with --prompt, which sends one")
    else:
        refuse_given(
            args, ["--numtokens"],
            "without --prompt; samples of N tokens each are --numtokens_range N",
        )  # fmt: skip
    if args.workload is not None:
        refuse_given(args, ("--seed", *_SAMPLES), "with --workload, which has its own requests")
    if args.workers is not None and not 1 <= args.workers <= MOST_WORKERS:
        raise SpecError(f"--workers must be 1 to {MOST_WORKERS}, not {args.workers}")
    for name in ("wait", "duration", "warmup", "drain_s", "timeout_s"):
        value = getattr(args, name)
        if value is not None and not (value > 0 or (name in ("drain_s", "warmup") and value == 0)):
            allowed = ">= 0" if name in ("drain_s", "warmup") else "> 0"
            raise SpecError(f"--{name.replace('_', '-')} must be seconds {allowed}, not {value}")


def workload_of(args: argparse.Namespace) -> Workload:
    """The named file, or the requested samples. SpecError, WorkloadError."""
    workload = _samples(args) if args.workload is None else read_workload(args.workload)
    if workload.users is not None:
        refuse_given(args, ["--drain-s"], "in a closed loop, which waits for every response")
    return workload


def _samples(args: argparse.Namespace) -> Workload:
    if args.wait is not None:
        refuse_given(args, ["--rate"], "with --wait, which says the same")
    rate = args.rate if args.wait is None else 1 / args.wait
    recipe = recipe_from(args, Recipe(), requests=args.numsamples, rate=rate)
    if args.duration is not None:
        refuse_given(args, ["--numsamples"], "with --duration, which says how long to send")
    if not has_rate(recipe.arrivals):
        refuse_given(args, ("--rate", "--wait"), f"with --arrivals {recipe.arrivals}")
    values = args.numtokens_range
    if values or args.selection:
        refuse_given(args, ["--output-tokens"], "with --selection or --numtokens_range")
        if recipe.arrivals.startswith("trace:"):
            why = "with a trace, which has its own lengths"
            refuse_given(args, ("--selection", "--numtokens_range"), why)
    if args.selection in ("normal", "buckets"):
        refuse_given(args, ["--numtokens_range"], f"with --selection {args.selection}")
    if args.selection == "buckets":
        values = range(5, 150, 5)
    elif args.selection == "range" or values:
        values = values or RANGE_TOKENS
    if values:
        recipe = replace(recipe, output_tokens="choice:" + "/".join(map(str, values)))
    return make(completed(recipe)) if args.duration is None else _lasting(recipe, args.duration)


def _lasting(recipe: Recipe, duration_s: float) -> Workload:
    """The requests that arrive within `--duration`; with a known rate, their number."""
    if not has_rate(recipe.arrivals):
        raise SpecError(
            f"--duration has no effect with --arrivals {recipe.arrivals}, which has no rate"
        )
    if not recipe.arrivals.startswith("trace:"):
        rate = recipe.rate or 1.0
        return make(replace(recipe, rate=rate, requests=max(1, round(rate * duration_s))))
    return until(make(recipe), duration_s)
