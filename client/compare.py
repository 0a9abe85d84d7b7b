"""Compares no, static and dynamic batching (and any other server) on the same workloads.

Starts each mode as a real server, replays the same workload files against each at several loads and
seeds, back to back and in alternating order, and writes results/<time>/. Uses HTTP only.
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

from client import distributions
from client.analysis.gates import FAILED
from client.analysis.results import Calibration, Loss, Played
from client.analysis.summary import final
from client.compare_options import BUDGET_S, Asked, parser, understood
from client.contestant import Contestant
from client.experiment import Fleet, calibrate, carry_out, knee
from client.load.live import clock_in, say
from client.load.machine import Company, commit, machine, versions
from client.load.rows import stretches
from client.load.servers import ServerError, end_as_ctrl_c, note_of
from client.load.workers import WorkerError
from client.report.comparison import judged, write_comparison
from client.report.comparison_page import as_text, write_comparison_page
from client.schedule import Experiment, schedule, telling_loads
from client.workloads.spec import SpecError
from client.workloads.workload_file import WorkloadError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_REPORT_S = 12.0
_BETWEEN_S = 0.5  # two runs
_LEAST_S = 1.5  # of a run
_QUIET_CORES = 0.05  # of others; more is worth a warning
_ORIGINAL_S = 100.0  # as many requests


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    started = time.monotonic()
    try:
        asked = understood(args)
        if not args.distributions:  # which prints a table and writes nothing
            asked.folder.mkdir(parents=True, exist_ok=True)
    except (SpecError, WorkloadError) as error:
        p.error(str(error))
    except OSError as error:
        p.error(f"{error.filename} cannot be created: {error.strerror}; see --out")
    end_as_ctrl_c()
    sys.unraisablehook = _interrupt_again
    with tempfile.TemporaryDirectory(prefix="compare-logs-") as logs:
        try:
            if args.distributions:
                status = _distributions(asked, Path(logs))
            else:
                status = _compare(asked, Path(logs), started)
        except KeyboardInterrupt:
            say("interrupted before anything was measured")
            status = 130
    say(f"took {time.monotonic() - started:.0f} s")
    return status


def _compare(asked: Asked, logs: Path, started: float) -> int:
    """Measure and report; a server that fails is reported, and the others are compared."""
    manifest = _manifest(asked)
    played: list[Played] = []
    losses: list[Loss] = []
    warnings: list[str] = []
    status = 0
    others = Company()
    with Fleet(
        asked.recipe,
        logs,
        asked.start_s,
        together=asked.together,
        workers=asked.args.workers,
        watched=asked.contestants if asked.args.watch else (),
    ) as fleet:
        manifest["cores"] = str(fleet.cores)
        fleet.start(asked.contestants)
        calibration = _calibrated(asked, fleet, losses)
        if calibration is not None:
            try:
                limits = {}
                if not asked.args.original:  # which has a single load
                    limits = _limits(asked, fleet, calibration, losses)
                plan = _with_window(
                    _planned(asked, calibration, limits, losses), calibration, asked,
                    time.monotonic() - started,
                )  # fmt: skip
                manifest |= _plan_figures(plan, calibration)
                say(
                    f"{len(schedule(plan))} runs of {_lengths(plan)} at loads "
                    f"{', '.join(f'{x:g}' for x in plan.loads)}, until {_end(plan)} at the "
                    f"earliest -> {asked.folder}"
                )
                for one in carry_out(plan, fleet, calibration.capacity):
                    # one by one, so that an interruption keeps them
                    losses.append(one) if isinstance(one, Loss) else played.append(one)
            except WorkerError as error:
                warnings.append(f"Ended early: {error}.")
                status = 1
            except KeyboardInterrupt:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal sends it twice
                warnings.append("Interrupted: the report covers what was measured before.")
                status = 130
            if calibration.baseline != asked.contestants[0].name:
                warnings.append(
                    f"Ratios and loads refer to {calibration.baseline}, as "
                    f"{asked.contestants[0].name} failed."
                )
        company = round(others.cores(), 2)
    if company > _QUIET_CORES:
        warnings.append(
            f"Other programs used {company:g} of a core on average: figures are lower, and "
            "intervals wider, than on an idle machine."
        )
    objectives = asked.objectives
    if objectives is None and calibration is not None:
        objectives = calibration.objectives(asked.args.slo_multiple or 5.0)
    notes = list(dict.fromkeys(n for r in played if (n := note_of(r.server)) is not None))
    manifest |= {
        "ended": _utc(),
        "loadavg_after": machine()["loadavg"],
        "cores_of_others": company,
        "notes": notes,
        "warnings": [*warnings, *notes],
        "order": [r.job.name for r in played],
        "servers": _servers(played),
        "workloads": {
            f"load{r.job.load:g}-seed{r.job.seed}": r.run.workload.sha256 for r in played
        },
        "objectives": None if objectives is None else asdict(objectives),
        "share": asked.args.share,
    }
    rows = {
        r.job.name: stretches(contestant.rows(logs), r.run)
        for r in played
        for contestant in asked.contestants
        if r.job.contestant == contestant.name and r.job.seed == asked.args.seed
    }
    comparison = judged(played, losses, calibration, manifest, rows)
    figures = write_comparison(asked.folder, comparison)
    write_comparison_page(asked.folder / "report.html", comparison)
    if losses:
        kept = shutil.copytree(logs, asked.folder / "logs", dirs_exist_ok=True)
        for loss in losses:
            say(f"error: {loss.contestant} failed {loss.when}: {loss.reason}")
        say(f"the servers' logs are kept in {kept}")
    for warning in manifest["warnings"]:
        say(f"note: {warning}")
    with contextlib.suppress(OSError):  # the reader is gone
        report = f"{as_text(comparison)}\n\n{asked.folder}/report.html"
        print(json.dumps(figures) if asked.args.json else report)
    failed = bool(losses) or any(r.verdict.word == FAILED for r in final(comparison.results))
    return status or int(failed)


def _distributions(asked: Asked, logs: Path) -> int:
    """Compares distributions of arrivals instead of modes."""
    try:
        workers = asked.args.workers
        with Fleet(asked.recipe, logs, asked.start_s, together=True, workers=workers) as fleet:
            found = distributions.distributions(asked, fleet)
    except ServerError as error:
        say(f"error: {error}")
        return 1
    print(distributions.figures(found) if asked.args.json else distributions.as_text(found))
    return 0


def _calibrated(asked: Asked, fleet: Fleet, losses: list[Loss]) -> Calibration | None:
    """The unit of load, from the first contestant that responds; those before it are lost."""
    for contestant in asked.contestants:
        say(f"measuring {contestant.name} with one request at a time")
        try:
            found = calibrate(contestant, fleet, asked.recipe, asked.args.calibrate_s)
        except ServerError as error:
            losses.append(Loss(contestant.name, "while its capacity was measured", str(error)))
            say(f"{losses[-1].headline}; it is left out from here on")
            continue
        say(f"loads are multiples of {found.capacity:.3g} requests/s")
        return found
    return None


def _limits(
    asked: Asked, fleet: Fleet, calibration: Calibration, losses: list[Loss]
) -> dict[str, float]:
    """The limit of each contestant, in loads; one that does not respond is lost."""
    found: dict[str, float] = {}
    seconds = max(asked.args.calibrate_s * 2 / 3, 6 * calibration.longest_s)
    for contestant in asked.contestants:
        if contestant.beside or any(loss.contestant == contestant.name for loss in losses):
            continue
        try:
            limit = knee(contestant, fleet, asked.recipe, seconds) / calibration.capacity
        except ServerError as error:
            fleet.end(contestant.name)
            losses.append(Loss(contestant.name, "before the first run", str(error)))
            say(f"{losses[-1].headline}; it is left out from here on")
            continue
        found[contestant.name] = limit
        say(f"{contestant.name}: its limit is load {limit:.3g}")
    return found


def _planned(
    asked: Asked, calibration: Calibration, limits: dict[str, float], losses: Sequence[Loss]
) -> Experiment:
    args, lost = asked.args, {loss.contestant for loss in losses}
    there = tuple(c for c in asked.contestants if c.name not in lost)
    if args.original:
        loads: tuple[float, ...] = (float(f"{1 / calibration.capacity:.3g}"),)
    else:
        loads = asked.loads or telling_loads(list(limits.values()))
    return Experiment(
        contestants=there,
        loads=loads,
        seeds=tuple(range(args.seed, args.seed + args.seeds)),
        control=None if args.no_control or not there else _control(there),
        recipe=asked.recipe,
        window_s=0.0,
        drain_s=args.drain_s if args.drain_s is not None else 5 * calibration.longest_s,
        folder=asked.folder,
        order_seed=args.seed,
        together=asked.together,
        limits=limits,
    )


def _control(contestants: Sequence[Contestant]) -> str:
    """The contestant that is compared with itself: dynamic, otherwise the last."""
    names = [c.name for c in contestants]
    return "dynamic" if "dynamic" in names else names[-1]


def _with_window(
    plan: Experiment, calibration: Calibration, asked: Asked, spent_s: float
) -> Experiment:
    """The plan with each run's length: as asked, or what fits the budget at worst."""
    if asked.args.original:
        return replace(plan, window_s=_ORIGINAL_S)
    if asked.args.numsamples is not None:
        return replace(plan, window_s=asked.args.numsamples / calibration.capacity)
    jobs = schedule(plan)
    starts = 0
    if not plan.together:
        starts = len(plan.seeds) * sum(c.command is not None for c in plan.contestants)
    # Overloaded runs use all of their drain, others almost none.
    drains = sum(plan.drain_of(job) for job in jobs if plan.beyond(job.contestant, job.load))
    fixed = starts * (calibration.start_s + 1.5) + drains + _BETWEEN_S * len(jobs)
    budget_s = asked.args.budget_s or BUDGET_S
    parts = sum(replace(plan, window_s=1.0).window_of(job.load) for job in jobs)
    window = (budget_s - spent_s - _REPORT_S - fixed) / max(parts, 1)
    least = max(_LEAST_S, 10 / (calibration.capacity * max(plan.loads)))
    if window < least:
        say(f"the budget of {budget_s:.0f} s is too small; runs last {least:.1f} s each")
        window = least
    return replace(plan, window_s=window)


def _end(plan: Experiment) -> str:
    """When the last run would end if every answer came with the last send."""
    return clock_in(sum(plan.window_of(job.load) for job in schedule(plan)))


def _lengths(plan: Experiment) -> str:
    """Those of its runs, in seconds."""
    return " and ".join(f"{s:.1f} s" for s in sorted({plan.window_of(x) for x in plan.loads}))


def _manifest(asked: Asked) -> dict[str, Any]:
    """The manifest, as far as it is known before the runs."""
    return {
        "command": shlex.join(["./compare.sh", *sys.argv[1:]]),
        "started": _utc(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": asked.model,
        "contestants": [c.name for c in asked.contestants],
        "recipe": asdict(asked.recipe),
    }


def _plan_figures(plan: Experiment, calibration: Calibration) -> dict[str, Any]:
    return {
        "loads": list(plan.loads),
        "limits": dict(plan.limits),
        "control": plan.control,
        "seeds": list(plan.seeds),
        "order_seed": plan.order_seed,
        "servers_together": plan.together,
        "window_s": plan.window_s,
        "windows_s": {f"{load:g}": plan.window_of(load) for load in plan.loads},
        "drain_s": plan.drain_s,
        "capacity": asdict(calibration),
    }


def _servers(played: Sequence[Played]) -> dict[str, Any]:
    """How each server described itself in its last response."""
    keys = ("mode", "policy", "model", "machine", "options")
    told = {
        r.job.contestant: {key: r.server[key] for key in keys if key in r.server}
        for r in played
        if r.server
    }
    for server in told.values():
        if isinstance(options := server.get("options"), dict):  # a folder of this run, gone by now
            server["options"] = {key: options[key] for key in options if key != "data_dir"}
    return told


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _interrupt_again(unraisable: UnraisableHookArgs) -> None:
    """A KeyboardInterrupt within a finalizer would be printed and ignored, so it is raised
    again."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
