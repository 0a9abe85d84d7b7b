"""How options are declared, the numbers that they allow, and which go together, for all command
lines.

An option that would have no effect is refused with a sentence that says why. Options that are not
given are None; a rule about an option that a command does not have does not apply to it.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from client.workloads.prompts import lengths_are_chosen
from client.workloads.recipe import Recipe, has_rate, make, varied
from client.workloads.spec import SpecError


def _number(of: type[float], allowed: str, allows: Callable[[float], bool]) -> Callable[[str], Any]:
    def read(text: str) -> float:
        value = of(text)
        if not allows(value):
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {value}")
        return value

    read.__name__ = of.__name__  # in argparse's message for a text that is no number
    return read


KINDS: dict[str, Callable[[str], Any]] = {
    "TEXT": str,
    "PATH": Path,
    "N": _number(int, "at least 1", lambda n: n >= 1),
    "SEED": _number(int, "at least 0", lambda n: n >= 0),
    "PROCESSES": _number(int, "1 to 64", lambda n: 1 <= n <= 64),
    "SHARE": _number(float, "in (0, 1]", lambda share: 0 < share <= 1),
    "FACTOR": _number(float, "> 0", lambda value: 0 < value < math.inf),
    "SECONDS": _number(float, "seconds > 0", lambda seconds: 0 < seconds < math.inf),
    "DELAY": _number(float, "seconds >= 0", lambda seconds: 0 <= seconds < math.inf),
}
_SHAPE = (
    "--arrivals", "--output-tokens", "--prompt-tokens", "--prompts", "--deferred-share",
    "--deadline-s",
)  # fmt: skip
_SAMPLES = (
    "--numsamples", "--duration", "--wait", "--rate", "--selection", "--numtokens_range", *_SHAPE
)  # fmt: skip
_RUN = ("--warmup", "--no-stream", "--drain-s", "--slo", "--out", "--deferred-as-batch")
_SERVER_OPTIONS = "server_options"  # those after --

_STATED = Path(__file__).with_name("options.txt")

Options = argparse.Namespace
Json = Mapping[str, Any]


def option(args: Options, name: str) -> Any:
    """The value of an option; None where it was not given, or the command does not have it."""
    value = getattr(args, name.lstrip("-").replace("-", "_"), None)
    return None if value is False or value == [] else value


def declare(
    parser: argparse.ArgumentParser, command: str, values: Json | None = None, **defaults: Any
) -> None:
    """Adds the options of a command, as ``options.txt`` states them, and ``values`` in their help.

    Each is ``--flag KIND: help``. A kind is one of `KINDS`, with `...` for one value or more, or a
    choice ``a|b``; an option without one is a switch.
    """
    heads_and_texts = re.split(r"^\[(.+)\]$", _STATED.read_text(), flags=re.MULTILINE)[1:]
    for head, text in zip(heads_and_texts[::2], heads_and_texts[1::2], strict=True):
        name, _, title = head.partition(": ")
        if name != command:
            continue
        group = parser.add_argument_group(title) if title else parser
        for entry in re.split(r"^(?=--)", text.strip(), flags=re.MULTILINE)[1:]:
            option, _, told = entry.format(**(values or {})).partition(": ")
            flag, _, kind = option.partition(" ")
            one, more = kind.removesuffix("..."), "+" if kind.endswith("...") else None
            about: dict[str, Any] = {"help": " ".join(told.split())}
            if not kind:
                about["action"] = "store_true"
            elif one in KINDS:
                about |= {"type": KINDS[one], "metavar": one, "nargs": more}
            else:
                about["choices"] = one.split("|")
            group.add_argument(flag, **about)
    parser.set_defaults(**defaults)


def add_shape_options(parser: argparse.ArgumentParser, defaults: Recipe) -> None:
    """The options that say what is sent; how much and how fast differs from command to command.

    Those that are not given are None, so that `check` can find those without effect.
    """
    declare(parser, "sent", asdict(defaults))


def add_common_options(
    parser: argparse.ArgumentParser, defaults: Recipe, *, calibrate_s: float
) -> None:
    """Those of the commands that start servers and calibrate, and of what is sent."""
    declare(parser, "common", calibrate_s=calibrate_s, seed=0, share=0.9)
    parser.add_argument("server_options", nargs="*", help=argparse.SUPPRESS)
    add_shape_options(parser, defaults)


def recipe_from(
    args: argparse.Namespace, defaults: Recipe, *, requests: int | None, rate: float | None
) -> Recipe:
    """The recipe that checked options ask for."""
    asked = {field.name: getattr(args, field.name, None) for field in fields(Recipe)}
    given = {name: value for name, value in asked.items() if value is not None}
    return replace(defaults, **{**given, "requests": requests, "rate": rate})


def varied_recipe(args: argparse.Namespace, defaults: Recipe, *, requests: int) -> Recipe:
    """The same for a command that varies rates and seeds. SpecError for arrivals that have no rate,
    and for what cannot be made, before anything is started."""
    recipe = varied(recipe_from(args, defaults, requests=requests, rate=1.0))
    if not has_rate(recipe.arrivals):
        raise SpecError(f"--arrivals {recipe.arrivals}: expected open arrivals that have a rate")
    make(replace(recipe, requests=1000))
    return recipe


def completed(recipe: Recipe) -> Recipe:
    """With 100 requests, one a second, where nothing was said; a trace keeps its own of both."""
    if recipe.arrivals.startswith("trace:"):
        return recipe
    return replace(recipe, requests=recipe.requests or 100, rate=recipe.rate or 1.0)


# an option that is given, and those that have no effect then
_WITH: dict[str, tuple[str, ...]] = {
    "--self-test": (
        "--prompt", "--numtokens", "--workload", "--seed", "--target", "--timeout-s", *_SAMPLES,
        *_RUN,
    ),
    "--prompt": ("--workload", "--workers", "--keep-alive", *_SAMPLES, *_RUN),
    "--workload": ("--seed", *_SAMPLES),
    "--wait": ("--rate",),
    "--duration": ("--numsamples",),
    "--selection": ("--output-tokens",),
    "--numtokens_range": ("--output-tokens",),
    "--slo": ("--slo-multiple",),
    "--original": ("--loads", "--numsamples", "--budget-s", "--output-tokens", "--arrivals"),
    "--numsamples": ("--budget-s",),
    "--watch": ("--out",),
}  # fmt: skip


def _without_effect(args: Options) -> Iterator[tuple[tuple[str, ...], str]]:
    """Options, and why they have none."""
    for other, names in _WITH.items():
        if option(args, other) is not None:
            yield names, f"with {other}"
    arrivals = option(args, "--arrivals") or Recipe().arrivals
    prompts = option(args, "--prompts") or Recipe().prompts
    if option(args, "--prompt") is None:
        yield ("--numtokens",), "without --prompt; samples of N tokens each are --numtokens_range N"
    if not has_rate(arrivals):
        yield ("--rate", "--wait", "--duration"), f"with --arrivals {arrivals}, which has no rate"
    if arrivals.startswith("trace:"):
        lengths = "--output-tokens", "--prompt-tokens", "--selection", "--numtokens_range"
        yield lengths, "with a trace, which has its own lengths"
    if (selection := option(args, "--selection")) in ("normal", "buckets"):
        yield ("--numtokens_range",), f"with --selection {selection}"
    if not lengths_are_chosen(prompts):
        yield ("--prompt-tokens",), f"with --prompts {prompts}, which have their own lengths"
    if option(args, "--deferred-share") is None:
        yield ("--deadline-s",), "without --deferred-share"
    # by default compare.sh starts modes, and no other command does
    started = option(args, "--mode") or getattr(args, "modes", "")
    if option(args, "--target") and started is not None and not started.strip(","):
        yield (
            ("--model", "--servers", "--start-s", "--shared-prefixes", _SERVER_OPTIONS),
            "on a server that already runs",
        )


def check(args: Options) -> None:
    """Raises SpecError for an option without effect."""
    for names, why in _without_effect(args):
        refuse_given(args, names, why)


def refuse_given(args: Options, names: tuple[str, ...], why: str) -> None:
    """Raises SpecError if one of these options was given."""
    for name in names:
        value = option(args, name)
        if value is not None:
            shown = f"-- {' '.join(value)}" if name == _SERVER_OPTIONS else name
            raise SpecError(f"{shown} has no effect {why}")
