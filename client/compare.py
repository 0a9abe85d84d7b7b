"""Compares no, static and dynamic batching (and any other server) on the same workloads.

Starts each mode as a real server, plays the same workload files against each over several loads,
repeats with several seeds in shuffled order and writes results/<time>/. Speaks HTTP only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.analysis.gates import FAILED
from client.analysis.results import Calibration, Loss, Result
from client.analysis.summary import final
from client.compare_options import BUDGET_S, Asked, parser, understood
from client.experiment import Experiment, calibrate, carry_out
from client.load.live import say
from client.load.machine import commit, machine, versions
from client.load.servers import ServerError, end_as_ctrl_c, note_of
from client.report.comparison import write_report
from client.workloads.spec import SpecError
from client.workloads.workload_file import WorkloadError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_REPORT_S = 12.0


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    started = time.monotonic()
    try:
        asked = understood(args)
        asked.folder.mkdir(parents=True, exist_ok=True)
    except (SpecError, WorkloadError) as error:
        p.error(str(error))
    except OSError as error:
        p.error(f"--out {args.out}: {error.strerror}")
    end_as_ctrl_c()
    sys.unraisablehook = _interrupt_again
    with tempfile.TemporaryDirectory(prefix="compare-logs-") as logs:
        try:
            status = _compare(asked, Path(logs), started)
        except KeyboardInterrupt:
            say("interrupted before anything was measured")
            status = 130
    say(f"took {time.monotonic() - started:.0f} s")
    return status


def _compare(asked: Asked, logs: Path, started: float) -> int:
    """Measure and report; a server that fails is reported, and the others are compared."""
    manifest = _manifest(asked)
    results: list[Result] = []
    losses: list[Loss] = []
    warnings: list[str] = []
    status = 0
    calibration = _calibrated(asked, logs, losses)
    if calibration is not None:
        plan = _with_window(
            _planned(asked, calibration, losses, logs), calibration, asked,
            time.monotonic() - started,
        )  # fmt: skip
        manifest |= _plan_figures(plan, calibration)
        say(
            f"{len(plan.contestants)} contestants x {len(plan.loads)} loads x {len(plan.seeds)} "
            f"seeds, {plan.window_s:.1f} s each -> {asked.folder}"
        )
        try:
            for found in carry_out(plan, calibration.capacity):
                # one by one, so that an interruption keeps them
                losses.append(found) if isinstance(found, Loss) else results.append(found)
        except KeyboardInterrupt:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes sends it twice
            warnings.append("Interrupted: what had been measured until then is reported.")
            status = 130
        if calibration.baseline != asked.contestants[0].name:
            warnings.append(
                f"Ratios and loads refer to {calibration.baseline}, as "
                f"{asked.contestants[0].name} failed."
            )
    notes = list(dict.fromkeys(n for r in results if (n := note_of(r.server)) is not None))
    manifest |= {
        "ended": _utc(),
        "loadavg_after": machine()["loadavg"],
        "notes": notes,
        "order": [r.name for r in results],
        "servers": _servers(results),
        "workloads": {f"load{r.load:g}-seed{r.seed}": r.run.workload.sha256 for r in results},
    }
    warnings += notes
    text, figures = write_report(asked.folder, results, losses, calibration, manifest, warnings)
    if losses:
        kept = shutil.copytree(logs, asked.folder / "logs", dirs_exist_ok=True)
        for loss in losses:
            say(f"error: {loss.contestant} failed {loss.when}: {loss.reason}")
        say(f"the servers' logs are kept in {kept}")
    for warning in warnings:
        say(f"note: {warning}")
    with contextlib.suppress(OSError):  # nobody reads it
        print(json.dumps(figures) if asked.args.json else f"{text}\n\n{asked.folder}/report.html")
    failed = bool(losses) or any(r.verdict.word == FAILED for r in final(results))
    return status or int(failed)


def _calibrated(asked: Asked, logs: Path, losses: list[Loss]) -> Calibration | None:
    """The capacity of the first contestant that answers; those before it are lost."""
    for contestant in asked.contestants:
        say(f"measuring the capacity of {contestant.name}")
        try:
            found = calibrate(contestant, asked.recipe, logs, asked.start_s, asked.args.calibrate_s)
        except ServerError as error:
            losses.append(Loss(contestant.name, "while its capacity was measured", str(error)))
            say(f"{losses[-1].headline}; it is left out from here on")
            continue
        say(f"load 1 = {found.capacity:.3g} requests/s")
        return found
    return None


def _planned(
    asked: Asked, calibration: Calibration, losses: Sequence[Loss], logs: Path
) -> Experiment:
    args, lost = asked.args, {loss.contestant for loss in losses}
    return Experiment(
        contestants=tuple(c for c in asked.contestants if c.name not in lost),
        loads=asked.loads,
        seeds=tuple(range(args.seed, args.seed + args.seeds)),
        repeat=not args.no_repeat,
        recipe=asked.recipe,
        window_s=0.0,
        drain_s=args.drain_s if args.drain_s is not None else 5 * calibration.longest_s,
        objectives=asked.objectives,
        folder=asked.folder,
        logs=logs,
        start_s=asked.start_s,
        order_seed=args.seed,
        together=asked.together,
    )


def _with_window(
    plan: Experiment, calibration: Calibration, asked: Asked, spent_s: float
) -> Experiment:
    """The plan with each run's length: as asked, or what fits the budget at worst."""
    if asked.args.numsamples is not None:
        window = asked.args.numsamples / calibration.capacity
    else:
        runs_a_block = len(plan.loads) * len(plan.contestants)
        blocks = len(plan.seeds)
        runs = runs_a_block * blocks + (len(plan.contestants) if plan.repeat else 0)
        starts = sum(c.command is not None for c in plan.contestants)
        starts *= 1 if plan.together else blocks + plan.repeat
        # Overloaded runs use all of their drain, calm ones almost none.
        over = sum(x > 1 for x in plan.loads) / len(plan.loads)
        fixed = starts * (calibration.start_s + 1.5) + runs * (over * plan.drain_s * 0.4 + 0.3)
        budget_s = asked.args.budget_s or BUDGET_S
        window = (budget_s - spent_s - _REPORT_S - fixed) / runs
        least = max(2.0, 10 / (calibration.capacity * max(plan.loads)))
        if window < least:
            say(f"the budget of {budget_s:.0f} s is too small; runs last {least:.1f} s each")
            window = least
    return replace(plan, window_s=window)


def _manifest(asked: Asked) -> dict[str, Any]:
    """What is known before anything is measured."""
    return {
        "command": shlex.join(["./compare.sh", *sys.argv[1:]]),
        "started": _utc(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": asked.model,
        "contestants": [c.name for c in asked.contestants],
        "loads": list(asked.loads),
        "recipe": asdict(asked.recipe),
    }


def _plan_figures(plan: Experiment, calibration: Calibration) -> dict[str, Any]:
    return {
        "seeds": list(plan.seeds),
        "order_seed": plan.order_seed,
        "servers_together": plan.together,
        "window_s": plan.window_s,
        "drain_s": plan.drain_s,
        "capacity": asdict(calibration),
    }


def _servers(results: Sequence[Result]) -> dict[str, Any]:
    """What each server said it is, from its last answer."""
    keys = ("mode", "policy", "model", "machine", "options")
    told = {
        r.contestant: {key: r.server[key] for key in keys if key in r.server}
        for r in results
        if r.server
    }
    for server in told.values():
        if isinstance(options := server.get("options"), dict):  # a folder of this run, gone by now
            server["options"] = {key: options[key] for key in options if key != "data_dir"}
    return told


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _interrupt_again(unraisable: UnraisableHookArgs) -> None:
    """A KeyboardInterrupt that hits a finalizer would be printed and forgotten: it comes again."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
