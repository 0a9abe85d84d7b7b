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


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="client.py",
        description="Sends load to a server and reports the result. Without options: 100 requests, "
        "about one a second, lengths normal(100, 50) clipped to 1..200, then the server's stats.",
    )
    lengths = " ".join(map(str, RANGE_TOKENS))
    declare(p, "client", {"range_tokens": lengths, "silence_s": SILENCE_S})
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
