"""The options that say what is sent, which all commands share."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from client.options.rules import SHAPE_OPTIONS, declare
from client.workloads.recipe import Recipe

_SIZES = """fixed:N | uniform:LOW,HIGH | normal:MEAN,SD,LOW,HIGH | lognormal:MEDIAN,SIGMA,LOW,HIGH |
    zipf:A,LOW,HIGH | choice:1/25/100"""
_SHAPE = f"""
--arrivals TEXT: constant | poisson | gamma:cv=2 (or gamma:burstiness=0.25, vLLM's name for
    1/cv^2) | weibull:cv=2 | mmpp:peak=4,share=0.1,cycle=200 | ramp:start=0.2 | burst (all at once)
    | closed:users=8,think=0.5 | plan:low | plan:medium | plan:high |
    plan:outer=zipf,a1=1.2,inner=uniform,bins=100,cv_rate=0.8 | trace:csv,path=FILE (also azure,
    burstgpt, mooncake, servegen; with resample=true each seed plays other parts of it, as always in
    comparisons and searches for capacity) ({{arrivals}})
--output-tokens TEXT: {_SIZES} ({{output_tokens}})
--prompt-tokens TEXT: {_SIZES} ({{prompt_tokens}})
--prompts TEXT: words (each one token of the server's vocabulary) | request ('Request i') |
    shared:prefixes=4,tokens=128 (each begins with one of four texts) | conversation:turns=4,gap=10
    (each turn contains those before it) | sharegpt:FILE | lines:FILE ({{prompts}})
--deferred-share NUMBER: share of deferred requests, 0..1 ({{deferred_share}})
--deadline-s NUMBER: deadline of a deferred request in seconds (none)
"""
_COMMON = """
--model TEXT: of the servers that are started, as for server.sh (embedded)
--calibrate-s SECONDS: seconds to measure one request at a time (%(default)s)
--seed WHOLE: first workload seed (%(default)s)
--slo TEXT: objectives: ttft:500ms,tpot:50ms,e2e:10s
--slo-multiple FACTOR: instead of --slo: largest TTFT and TPOT as multiples of a request alone (5)
--share SHARE: share of the requests that must meet the objectives (%(default)s)
--start-s SECONDS: seconds that a server may take to start (600)
--json: print all figures as JSON
"""
_GIVEN = (*(option[2:].replace("-", "_") for option in SHAPE_OPTIONS), "seed")


def add_shape_options(parser: argparse.ArgumentParser, defaults: Recipe) -> None:
    """The options that say what is sent; how much and how fast differs from command to command.

    Those that are not given are None, so that `check` can find those without effect.
    """
    declare(parser, _SHAPE.format_map(asdict(defaults)), "what is sent")


def add_common_options(parser: argparse.ArgumentParser, *, calibrate_s: float) -> None:
    """Those of the commands that start servers and calibrate."""
    declare(parser, _COMMON, calibrate_s=calibrate_s, seed=0, share=0.9)
    parser.add_argument("server_options", nargs="*", help=argparse.SUPPRESS)


def recipe_from(
    args: argparse.Namespace, defaults: Recipe, *, requests: int | None, rate: float | None
) -> Recipe:
    """The recipe that checked options ask for."""
    return replace(
        defaults,
        requests=requests,
        rate=rate,
        **{name: value for name in _GIVEN if (value := getattr(args, name)) is not None},
    )


def completed(recipe: Recipe) -> Recipe:
    """With 100 requests, one a second, where nothing was said; a trace keeps its own of both."""
    if recipe.arrivals.startswith("trace:"):
        return recipe
    return replace(recipe, requests=recipe.requests or 100, rate=recipe.rate or 1.0)
