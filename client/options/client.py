"""The command line of client.py: its options, and the workload that they ask for."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from client.load.play import SILENCE_S
from client.options.rules import refuse_given
from client.options.shape import add_shape_options, completed, recipe_from
from client.workloads.recipe import Recipe, lengths_are_chosen, make
from client.workloads.words import Words
from client.workloads.workload_file import Workload, read_workload, until

SELECTIONS = ("normal", "range", "buckets")
RANGE_TOKENS = (1, 25, 100)


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
        "openai-chat+http://..., openai-responses+http://..., tgi+http://...",
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


def makes_words(args: argparse.Namespace) -> bool:
    """Whether the prompts are made of words."""
    return args.workload is None and lengths_are_chosen(args.prompts or Recipe().prompts)


def workload_of(args: argparse.Namespace, words: Words | None = None) -> Workload:
    """The named file, or the requested samples, their prompts made of `words`. SpecError,
    WorkloadError."""
    workload = _samples(args, words) if args.workload is None else read_workload(args.workload)
    if workload.users is not None:
        refuse_given(args, ("--drain-s",), "in a closed loop, which waits for every response")
    return workload


def _samples(args: argparse.Namespace, words: Words | None) -> Workload:
    rate = args.rate if args.wait is None else 1 / args.wait
    recipe = recipe_from(args, Recipe(), requests=args.numsamples, rate=rate)
    values = args.numtokens_range
    if args.selection == "buckets":
        values = range(5, 150, 5)
    elif args.selection == "range":
        values = values or RANGE_TOKENS
    if values:
        recipe = replace(recipe, output_tokens="choice:" + "/".join(map(str, values)))
    if args.duration is None:
        return make(completed(recipe), words)
    return _lasting(recipe, args.duration, words)


def _lasting(recipe: Recipe, duration_s: float, words: Words | None) -> Workload:
    """The requests that arrive within `--duration`; with a known rate, their number."""
    if not recipe.arrivals.startswith("trace:"):
        rate = recipe.rate or 1.0
        return make(replace(recipe, rate=rate, requests=max(1, round(rate * duration_s))), words)
    return until(make(recipe, words), duration_s)
