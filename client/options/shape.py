"""The options that say what is sent, which all commands share."""

from __future__ import annotations

import argparse
from dataclasses import replace

from client.options.rules import SHAPE_OPTIONS
from client.workloads.recipe import Recipe

ARRIVALS_HELP = (
    "constant | poisson | gamma:cv=2 (or gamma:burstiness=0.25, vLLM's name for 1/cv^2) | "
    "weibull:cv=2 | mmpp:peak=4,share=0.1,cycle=200 | ramp:start=0.2 | burst (all at once) | "
    "closed:users=8,think=0.5 | plan:low | plan:medium | plan:high | "
    "plan:outer=zipf,a1=1.2,inner=uniform,bins=100,cv_rate=0.8 | trace:azure,path=FILE "
    "(also burstgpt, mooncake, servegen)"
)
SIZES_HELP = (
    "fixed:N | uniform:LOW,HIGH | normal:MEAN,SD,LOW,HIGH | lognormal:MEDIAN,SIGMA,LOW,HIGH | "
    "zipf:A,LOW,HIGH | choice:1/25/100"
)
_GIVEN = (*(option[2:].replace("-", "_") for option in SHAPE_OPTIONS), "seed")


def add_shape_options(parser: argparse.ArgumentParser, defaults: Recipe) -> None:
    """The options that say what is sent; how much and how fast differs from command to command.

    Those that are not given are None, so that `check` can find those without effect.
    """
    group = parser.add_argument_group("what is sent")
    group.add_argument("--arrivals", help=f"{ARRIVALS_HELP} ({defaults.arrivals})")
    group.add_argument("--output-tokens", help=f"{SIZES_HELP} ({defaults.output_tokens})")
    group.add_argument("--prompt-tokens", help=f"{SIZES_HELP} ({defaults.prompt_tokens})")
    group.add_argument(
        "--prompts",
        help="words (each one token of the server's vocabulary) | request ('Request i') | "
        "shared:prefixes=4,tokens=128 (each begins with one of four texts) | "
        "conversation:turns=4,gap=10 (each turn contains those before it) | "
        f"sharegpt:FILE | lines:FILE ({defaults.prompts})",
    )
    group.add_argument("--deferred-share", type=float, help="share of deferred requests, 0..1 (0)")
    group.add_argument(
        "--deadline-s", type=float, help="deadline of a deferred request in seconds (none)"
    )


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
