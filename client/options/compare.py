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


_DECLARED = f"""
--modes TEXT: modes to start, of nobatch, static, dynamic and dynamic:POLICY (dynamic:tgi); ratios
    refer to the first, and loads are multiples of its rate with one request at a time.
    static:nowait starts batches at once (--max-wait-ms 0); beside static it runs at one load
    (default {",".join(COMPARED)}; with --original {",".join(MODES)})
--loads TEXT: offered loads as multiples of the first mode's rate with one request at a time, like
    0.5,1,2.5,6; auto: below the smallest limit of the modes, between their limits, and beyond the
    largest (default auto)
--original: the experiment of the project that this one follows: 100 requests to each mode, about
    one a second, output lengths normal between 1 and 200; takes about six minutes
--shared-prefixes: prompts that begin alike (--prompts {SHARED_PREFIXES}, unless --prompts says
    otherwise), and prefix caching in mode dynamic, which is otherwise off
--seeds N: workloads per load, of a trace other parts for each, so that intervals contain more than
    the machine's noise (default {SEEDS[0]}; for a slow model down to {SEEDS[-1]})
--numsamples N: requests of a run at --loads 1; other loads send in proportion, so that all runs
    take equally long (default: what fits --budget-s)
--budget-s SECONDS: seconds in which to finish, instead of --numsamples (default {BUDGETS_S[0]:g};
    for a slow model {BUDGETS_S[1]:g})
--drain-s DELAY: seconds to wait for responses after the last send; then requests are cut and count
    as unfinished (default: 5 times the longest response of a request alone)
--servers together|restart: together: the servers of all modes stay up, all but one idle; restart:
    one at a time, restarted for each seed (default: together if memory holds them all twice,
    judging by the first)
--no-control: do not compare dynamic (or the last) with itself
--workers PROCESSES: processes that send, for servers faster than one can read (default %(default)s)
--out PATH: folder to write (default results/<time>)
--watch: print the address of a live page that shows all servers side by side while they are
    measured; viewers take time from that, so the report goes to a temporary folder
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="compare.sh",
        description="Compare batching modes on this machine; writes a table, pictures and raw data "
        "to results/<time>/. The default run ends within five minutes, of a slow model within ten.",
        epilog="Options after -- go to each server.sh, e.g. -- --max-batch-size 32",
    )
    declare(p, _DECLARED, workers=1)
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
