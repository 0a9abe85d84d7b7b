"""The command line of client.py: its options, and the workload that they ask for."""

from __future__ import annotations

import argparse
from dataclasses import replace

from client.load.http.target import Target
from client.load.play import SILENCE_S
from client.load.servers.probing import served_words
from client.options.rules import add_shape_options, completed, declare, recipe_from, refuse_given
from client.workloads.recipe import Recipe, make
from client.workloads.workload_file import Workload, read_workload, until

RANGE_TOKENS = (1, 25, 100)


_SIMPLE = f"""
--prompt TEXT: send this one prompt and print the completion
--numtokens N: tokens to generate for --prompt (10)
--numsamples N: number of requests (100; of a trace: all)
--duration SECONDS: send for so long, instead of --numsamples
--wait SECONDS: mean seconds between two requests (1.0; of a trace: its own)
--selection normal|range|buckets: output lengths: normal (as above), range (values of
    --numtokens_range), buckets (5, 10, ... 145)
--numtokens_range N...: values to draw lengths from ({" ".join(map(str, RANGE_TOKENS))})
"""
_LOAD = f"""
--workload PATH: send this workload file (python -m client.workload make)
--rate FACTOR: requests a second, instead of --wait
--seed SEED: seed of the workload (0); with --prompt: of the server's sampling (random)
--target TEXT: server, instead of IP and PORT: http://host:port, openai+http://...?model=m,
    openai-chat+http://..., tgi+http://...
--warmup DELAY: leave so many seconds at the start out of all figures (of steady loads a
    quarter of the sends)
--no-stream: request whole responses
--drain-s DELAY: seconds after the last send until requests are cut (never)
--timeout-s SECONDS: seconds of silence after which a request has failed ({SILENCE_S:g})
--workers PROCESSES: processes that send, for servers faster than one can read (1)
--keep-alive: reuse connections (by default each request opens one, as independent users do)
--deferred-as-batch: send the deferred requests as one job of /v1/batches, due at their last
    deadline
"""
_RESULTS = """
--slo TEXT: objectives, for goodput: ttft:500ms,tpot:50ms,e2e:10s
--out PATH: write report.txt, figures and raw data there
--json: print all figures as JSON
--self-test: measure the limit of this client
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="client.py",
        description="Sends load to a server and reports the result. Without options: 100 requests, "
        "about one a second, lengths normal(100, 50) clipped to 1..200, then the server's stats.",
    )
    declare(p, _SIMPLE, "simple use")
    declare(p, _LOAD, "load")
    declare(p, _RESULTS, "results")
    add_shape_options(p, Recipe())
    return p


def workload_of(args: argparse.Namespace, target: Target | None = None) -> Workload:
    """The named file, or the requested samples, their prompts counted in the target's tokens.
    SpecError."""
    workload = _samples(args, target) if args.workload is None else read_workload(args.workload)
    if workload.users is not None:
        refuse_given(args, ("--drain-s",), "in a closed loop, which waits for every response")
    return workload


def _samples(args: argparse.Namespace, target: Target | None) -> Workload:
    rate = args.rate if args.wait is None else 1 / args.wait
    recipe = recipe_from(args, Recipe(), requests=args.numsamples, rate=rate)
    words = None if target is None else served_words(target, recipe.prompts)
    values = args.numtokens_range
    if args.selection == "buckets":
        values = range(5, 150, 5)
    elif args.selection == "range":
        values = values or RANGE_TOKENS
    if values:
        recipe = replace(recipe, output_tokens="choice:" + "/".join(map(str, values)))
    if args.duration is not None:
        if recipe.arrivals.startswith("trace:"):
            return until(make(recipe, words), args.duration)
        count = max(1, round((recipe.rate or 1.0) * args.duration))
        recipe = replace(recipe, requests=count)
    return make(completed(recipe), words)
