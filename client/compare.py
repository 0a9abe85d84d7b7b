"""Compares no, static and dynamic batching (and any other server) on the same workloads.

Starts each mode as a real server, plays the same workload files against each over several loads,
repeats with several seeds in shuffled order and writes results/<time>/. Speaks HTTP only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from client.experiment import (
    MODES,
    Calibration,
    Contestant,
    Plan,
    Result,
    calibrate,
    carry_out,
    server_command,
)
from client.live import say
from client.machine import ROOT, commit, machine, versions
from client.metrics import Objectives, parse_objectives
from client.recipe import Recipe, add_shape_options, make, recipe_from
from client.report import write_report
from client.servers import ServerError
from client.spec import SpecError
from client.summary import final
from client.target import parse_target
from client.workload_file import WorkloadError

_REPORT_S = 12.0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="compare.sh",
        description="Compare batching modes on this machine; writes a table, pictures and raw data "
        "to results/<time>/. The default run ends within five minutes.",
        epilog="Options after -- go to each server.sh, e.g. -- --max-batch-size 32",
    )
    p.add_argument("--model", default="embedded", help="as for server.sh (default %(default)s)")
    p.add_argument(
        "--modes", default=",".join(MODES),
        help="modes to start, of nobatch, static, dynamic and dynamic:POLICY (dynamic:tgi); the "
        "first is what ratios refer to, and its speed with one request at a time is load 1 "
        "(default %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--target", action="append", default=[], metavar="NAME=URL",
        help="also load a server that already runs: name=openai+http://host:port?model=m, "
        "openai-chat+http, tgi+http, or http for this project's API; repeatable",
    )  # fmt: skip
    p.add_argument(
        "--loads", default="0.5,1,2.5,6",
        help="offered loads as multiples of the measured capacity (default %(default)s)",
    )  # fmt: skip
    p.add_argument("--seeds", type=int, default=3, help="workloads per load (default %(default)s)")
    p.add_argument(
        "--numsamples", type=int, default=None,
        help="requests of a run at load 1; other loads send in proportion, so that every run lasts "
        "as long (default: what fits --budget-s)",
    )  # fmt: skip
    p.add_argument(
        "--budget-s", type=float, default=250.0,
        help="aim to end after so many seconds, unless --numsamples is given (default %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--drain-s", type=float, default=None,
        help="how long after the last send to wait for answers; what then runs is cut and counts "
        "as unfinished (default: 5 times the longest answer of a request alone)",
    )  # fmt: skip
    p.add_argument(
        "--servers", choices=("together", "restart"), default=None,
        help="together: all modes' servers live side by side, idle but for one; restart: one at a "
        "time, started anew for each seed (default: together for the embedded model, restart for "
        "others, whose memory may not fit several times)",
    )  # fmt: skip
    p.add_argument(
        "--calibrate-s", type=float, default=10.0,
        help="how long to measure the capacity (default %(default)s)",
    )  # fmt: skip
    p.add_argument("--no-repeat", action="store_true", help="do not play one seed twice")
    p.add_argument("--seed", type=int, default=0, help="first workload seed (default %(default)s)")
    p.add_argument(
        "--slo", default=None, metavar="ttft:S,tpot:S,e2e:S",
        help="objectives in seconds, for goodput",
    )  # fmt: skip
    p.add_argument(
        "--start-s",
        type=float,
        default=600.0,
        help="how long a server may take to start (default %(default)s)",
    )
    p.add_argument(
        "--out", type=Path, default=None, help="folder to write (default results/<time>)"
    )
    p.add_argument("--json", action="store_true", help="print all figures as JSON, for machines")
    p.add_argument("server_options", nargs="*", help=argparse.SUPPRESS)
    add_shape_options(p, Recipe(output_tokens="normal:50,25,1,100"))
    return p


@dataclass(frozen=True, slots=True)
class _Asked:
    """The command line, understood."""

    args: argparse.Namespace
    contestants: tuple[Contestant, ...]
    loads: tuple[float, ...]
    recipe: Recipe
    objectives: Objectives | None
    folder: Path


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    started = time.monotonic()
    try:
        asked = _understood(args)
    except (SpecError, WorkloadError) as error:
        p.error(str(error))
    if args.servers is None:
        args.servers = "together" if args.model == "embedded" else "restart"
    asked.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _as_interrupt)
    with tempfile.TemporaryDirectory(prefix="compare-logs-") as logs:
        try:
            status = _compare(asked, Path(logs), started)
        except ServerError as error:
            say(f"error: {error}")
            kept = shutil.copytree(logs, asked.folder / "logs", dirs_exist_ok=True)
            say(f"the servers' logs are kept in {kept}")
            status = 1
        except KeyboardInterrupt:
            say("interrupted before anything was measured")
            status = 130
    say(f"took {time.monotonic() - started:.0f} s")
    return status


def _understood(args: argparse.Namespace) -> _Asked:
    loads = _loads(args.loads)
    contestants = _contestants(args)
    recipe = replace(recipe_from(args, requests=1, rate=1.0), exact_duration=True)
    if args.seeds < 1 or (args.numsamples is not None and args.numsamples < 1):
        raise SpecError("--seeds and --numsamples must be at least 1")
    if recipe.arrivals.startswith(("closed", "burst")):
        raise SpecError("compare needs open arrivals that have a rate")
    make(replace(recipe, requests=1000))  # a recipe that cannot be made is refused now
    objectives = parse_objectives(args.slo) if args.slo else None
    folder = args.out or ROOT / "results" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return _Asked(args, contestants, loads, recipe, objectives, folder)


def _compare(asked: _Asked, logs: Path, started: float) -> int:
    args, contestants = asked.args, asked.contestants
    say(f"measuring the capacity of {contestants[0].name} ({args.model})")
    calibration = calibrate(contestants[0], asked.recipe, logs, args.start_s, args.calibrate_s)
    say(f"load 1 = {calibration.capacity:.3g} requests/s")
    plan = Plan(
        contestants=contestants,
        loads=asked.loads,
        seeds=tuple(range(args.seed, args.seed + args.seeds)),
        repeat=not args.no_repeat,
        recipe=asked.recipe,
        window_s=0.0,
        drain_s=args.drain_s if args.drain_s is not None else 5 * calibration.longest_s,
        objectives=asked.objectives,
        folder=asked.folder,
        logs=logs,
        start_s=args.start_s,
        order_seed=args.seed,
        together=args.servers == "together",
    )
    plan = _with_window(plan, calibration, args, time.monotonic() - started)
    say(
        f"{len(contestants)} contestants x {len(plan.loads)} loads x {args.seeds} seeds, "
        f"{plan.window_s:.1f} s each -> {asked.folder}"
    )
    manifest = _manifest(args, plan, calibration)
    results: list[Result] = []
    warnings: list[str] = []
    status = 0
    try:
        for result in carry_out(plan, calibration.capacity):
            results.append(result)  # one by one, so that an interruption keeps them
    except KeyboardInterrupt:
        warnings.append("Interrupted: what had been measured until then is reported.")
        status = 130
    except ServerError as error:
        warnings.append(f"Ended early: {error}")
        status = 1
    if not final(results):
        say("error: nothing was measured" + "".join(f"; {w}" for w in warnings))
        return status or 1
    manifest |= {
        "ended": _utc(),
        "loadavg_after": machine()["loadavg"],
        "order": [r.name for r in results],
        "servers": _servers(results),
        "workloads": {f"load{r.load:g}-seed{r.seed}": r.run.workload.sha256 for r in results},
    }
    warnings += _announcements(results)
    text, figures = write_report(asked.folder, results, calibration, manifest, warnings)
    for warning in warnings:
        say(f"note: {warning}")
    print(json.dumps(figures) if args.json else f"{text}\n\n{asked.folder}/report.html")
    return status


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(sorted({float(x) for x in text.split(",")}))
    except ValueError:
        loads = ()
    if not loads or not all(0 < x < 1e6 for x in loads):
        raise SpecError(f"--loads {text!r}: expected numbers > 0 like 0.5,1,2,4")
    return loads


def _contestants(args: argparse.Namespace) -> tuple[Contestant, ...]:
    modes = [m for m in args.modes.split(",") if m]
    unknown = [m for m in modes if m not in MODES and not m.startswith("dynamic:")]
    if unknown or len(set(modes)) != len(modes):
        raise SpecError(
            f"--modes {args.modes!r}: expected some of {', '.join(MODES)} and dynamic:POLICY "
            "(dynamic:tgi), each once"
        )
    made = [Contestant(m, server_command(m, args.model, args.server_options), None) for m in modes]
    for text in args.target:
        target = parse_target(text)
        made.append(Contestant(target.name, None, target))
    names = [c.name for c in made]
    if len(set(names)) != len(names):
        raise SpecError(f"two contestants share a name: {', '.join(names)}")
    if not made:
        raise SpecError("nothing to compare: give --modes or --target")
    return tuple(made)


def _with_window(
    plan: Plan, calibration: Calibration, args: argparse.Namespace, spent_s: float
) -> Plan:
    """The plan with each run's length: as asked, or what fits the budget at worst."""
    if args.numsamples is not None:
        window = args.numsamples / calibration.capacity
    else:
        runs_a_block = len(plan.loads) * len(plan.contestants)
        blocks = len(plan.seeds)
        runs = runs_a_block * blocks + (len(plan.contestants) if plan.repeat else 0)
        starts = sum(c.command is not None for c in plan.contestants)
        starts *= 1 if plan.together else blocks + plan.repeat
        # Overloaded runs use all of their drain, calm ones almost none.
        over = sum(x > 1 for x in plan.loads) / len(plan.loads)
        fixed = starts * (calibration.start_s + 1.5) + runs * (over * plan.drain_s * 0.4 + 0.3)
        window = (args.budget_s - spent_s - _REPORT_S - fixed) / runs
        least = max(2.0, 10 / (calibration.capacity * max(plan.loads)))
        if window < least:
            say(f"the budget of {args.budget_s:.0f} s is too small; runs last {least:.1f} s each")
            window = least
    return replace(plan, window_s=window)


def _manifest(args: argparse.Namespace, plan: Plan, calibration: Calibration) -> dict[str, Any]:
    return {
        "command": shlex.join(["./compare.sh", *sys.argv[1:]]),
        "started": _utc(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": args.model,
        "contestants": [c.name for c in plan.contestants],
        "loads": list(plan.loads),
        "seeds": list(plan.seeds),
        "order_seed": plan.order_seed,
        "servers_together": plan.together,
        "window_s": plan.window_s,
        "drain_s": plan.drain_s,
        "recipe": asdict(plan.recipe),
        "capacity": asdict(calibration),
    }


def _servers(results: Sequence[Result]) -> dict[str, Any]:
    """What each server said it is, from its last answer."""
    keys = ("mode", "policy", "model", "machine", "options")
    return {
        r.contestant: {key: r.server[key] for key in keys if key in r.server}
        for r in results
        if r.server
    }


def _announcements(results: Sequence[Result]) -> list[str]:
    """A model with random weights says so at its start; the report says it too."""
    models = [(r.server or {}).get("model") for r in results]
    said = [
        f"Model {m.get('name')}: {m['note']}"
        for m in models
        if isinstance(m, dict) and m.get("note")
    ]
    return list(dict.fromkeys(said))


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
