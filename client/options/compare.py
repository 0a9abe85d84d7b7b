"""The command line of compare.sh: its options and their meaning. Starts and measures nothing."""

from __future__ import annotations

import argparse
import re
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from client.analysis.metrics import Objectives, parse_objectives
from client.load.http.target import parse_target
from client.load.machine import ROOT
from client.load.servers.processes import COMPARED, MODES, NO_WAIT, System, server_command
from client.options.rules import add_common_options, check, declare, varied_recipe
from client.workloads.recipe import Recipe
from client.workloads.spec import SpecError

BUDGETS_S = (280.0, 540.0)  # the second for a model whose runs do not fit into the first
SEEDS = (6, 5, 4, 3)  # the most that fit
SHARED_PREFIXES = "shared:prefixes=8,tokens=512"
_DEFAULTS = Recipe(output_tokens="normal:50,25,1,100", exact_duration=True)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="compare.sh",
        description="Compare batching modes on this machine; writes a table, pictures and raw data "
        "to results/<time>/. The default run takes about five minutes, with a slow model ten.",
        epilog="Options after -- go to each server.sh, e.g. -- --max-batch-size 32",
    )
    values = {
        "compared": ",".join(COMPARED), "modes": ",".join(MODES), "most_seeds": SEEDS[0],
        "shared_prefixes": SHARED_PREFIXES, "least_seeds": SEEDS[-1], "budget_s": BUDGETS_S[0],
        "slow_budget_s": BUDGETS_S[1],
    }  # fmt: skip
    declare(p, "compare", values, workers=1)
    p.add_argument(
        "--target", action="append", default=[], metavar="NAME=URL",
        help="also send the load to a running server: name=openai+http://host:port?model=m, "
        "openai-chat+http, tgi+http, or http for this project's API; "
        "repeatable",
    )  # fmt: skip
    add_common_options(p, _DEFAULTS, calibrate_s=6.0)
    return p


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The parsed command line. ``loads`` is None if they are to be found, ``together`` if memory
    decides whether all servers stay up together."""

    args: argparse.Namespace
    systems: tuple[System, ...]
    loads: tuple[float, ...] | None
    recipe: Recipe
    objectives: Objectives | None
    folder: Path
    model: str
    together: bool | None


def options_from(args: argparse.Namespace) -> CompareOptions:
    """Raises SpecError for options that cannot be carried out, before anything is started."""
    check(args)
    if args.original:
        args.output_tokens, args.seeds, args.no_control = "normal:100,50,1,200", 1, True
    if args.shared_prefixes and args.prompts is None:
        args.prompts = SHARED_PREFIXES
    loads = _loads(args.loads)
    systems = _systems(args)
    recipe = varied_recipe(args, _DEFAULTS, requests=1)
    objectives = parse_objectives(args.slo) if args.slo else None
    if args.watch:
        args.out = Path(tempfile.mkdtemp(prefix="watched-"))
    folder = args.out or ROOT / "results" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    model = args.model or "embedded"
    if all(system.command is None for system in systems):
        model = "servers that already run"
    together = None if args.servers is None else args.servers == "together"
    return CompareOptions(args, systems, loads, recipe, objectives, folder, model, together)


def _loads(text: str | None) -> tuple[float, ...] | None:
    if text in (None, "auto"):
        return None
    try:
        loads = tuple(sorted({float(x) for x in text.split(",")}))
    except ValueError:
        loads = ()
    if not loads or not all(0 < x < 1e6 for x in loads):
        raise SpecError(f"--loads {text!r}: expected auto or numbers > 0 like 0.5,1,2,4")
    return loads


def _systems(args: argparse.Namespace) -> tuple[System, ...]:
    """The modes that are started, then the servers that run."""
    modes: tuple[str, ...] = MODES if args.original else COMPARED
    if args.modes is not None:
        modes = tuple(m for m in args.modes.split(",") if m)
    if not all(m in COMPARED or re.fullmatch("dynamic:.+", m) for m in modes):
        raise SpecError(
            f"--modes {args.modes!r}: expected some of {', '.join(COMPARED)} and dynamic:POLICY "
            "(dynamic:tgi)"
        )
    made = []
    for mode in modes:
        model, options = args.model or "embedded", args.server_options
        command = server_command(mode, model, options, prefix_caching=args.shared_prefixes)
        beside = "static" if mode == NO_WAIT and "static" in modes else None
        made.append(System(mode, command, None, beside))
    made += [System(target.name, None, target) for target in map(parse_target, args.target)]
    names = [c.name for c in made]
    if len(set(names)) != len(names):
        raise SpecError(f"two systems share a name: {', '.join(names)}")
    if not made:
        raise SpecError("nothing to compare: give --modes or --target")
    return tuple(made)
