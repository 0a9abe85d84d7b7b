"""Compares no, static and dynamic batching (and any other server) on the same workloads.

Starts each mode as a real server, replays the same workload files against each at several loads and
seeds, back to back and in alternating order, and writes results/<time>/. Uses HTTP only.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from client.analysis.comparison.results import Calibration, Loss, Played
from client.analysis.comparison.summary import planned as planned_runs
from client.analysis.gates import FAILED
from client.comparison.fleet import Fleet
from client.comparison.plan import planned, schedule
from client.comparison.runs import calibrated, carry_out, limits_of
from client.load.live import clock_in, say
from client.load.machine import Company, commit, machine, policy_sha256, versions
from client.load.records import make_folder
from client.load.servers.processes import end_as_ctrl_c
from client.load.servers.stats import note_of
from client.load.workers import WorkerError
from client.options.compare import CompareOptions, options_from, parser
from client.report.comparison import as_text, judged, write_comparison
from client.workloads.recipe import used
from client.workloads.spec import SpecError

_QUIET_CORES = 0.05  # of others; more is worth a warning


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    started = time.monotonic()
    try:
        options = options_from(args)
        make_folder(options.folder)
    except SpecError as error:
        p.error(str(error))
    end_as_ctrl_c()
    with tempfile.TemporaryDirectory(prefix="compare-logs-") as logs:
        try:
            status = _compare(options, Path(logs), started)
        except KeyboardInterrupt:
            say("interrupted before anything was measured")
            status = 130
        except WorkerError as error:  # as above
            say(f"error: {error}")
            status = 1
    say(f"took {time.monotonic() - started:.0f} s")
    return status


def _compare(options: CompareOptions, logs: Path, started: float) -> int:
    """Measure and report; a server that fails is reported, and the others are compared."""
    args, others, warnings = options.args, Company(), list[str]()
    manifest: dict[str, Any] = {
        "command": shlex.join(["./compare.sh", *sys.argv[1:]]),
        "started": _utc(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": options.model,
        "systems": [c.name for c in options.systems],
        "policies_sha256": {
            c.name: digest
            for c in options.systems
            if (digest := policy_sha256(c.name.partition(":")[2])) is not None
        },
        "recipe": used(options.recipe),
    }
    played: list[Played] = []
    status = 0
    with Fleet(
        options.recipe,
        logs,
        args.start_s,
        together=options.together,
        workers=args.workers,
        watched=options.systems if args.watch else (),
    ) as fleet:
        fleet.start(options.systems)
        unit = calibrated(options.systems, fleet, args.calibrate_s)
        if unit is not None:
            try:
                for one in _runs(options, fleet, manifest, unit, started):
                    played.append(one)
            except WorkerError as error:
                warnings.append(f"Ended early: {error}.")
                status = 1
            except KeyboardInterrupt:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closing terminal sends it twice
                warnings.append("Interrupted: the report covers what was measured before.")
                status = 130
            if unit.baseline != (first := options.systems[0].name):
                warnings.append(f"Ratios and loads refer to {unit.baseline}, as {first} failed.")
    company = round(others.cores(), 2)
    if company > _QUIET_CORES:
        warnings.append(
            f"Other programs used {company:g} of a core on average: figures are lower, and "
            "intervals wider, than on an idle machine."
        )
    manifest |= {
        "cores": str(fleet.cores), "cores_of_others": company, "warnings": warnings
    }  # fmt: skip
    failed = _report(options, logs, manifest, unit, played, tuple(fleet.lost.values()))
    return status or int(failed)


def _runs(
    options: CompareOptions,
    fleet: Fleet,
    manifest: dict[str, Any],
    unit: Calibration,
    started: float,
) -> Iterator[Played]:
    """The planned runs, one by one, so that an interruption keeps those that have ended."""
    args, limits = options.args, {}
    if not args.original:  # which has a single load
        limits = limits_of(options.systems, fleet, args.calibrate_s, unit)
    plan = planned(
        options, unit, limits, fleet.lost, together=bool(fleet.together),
        spent_s=time.monotonic() - started,
    )  # fmt: skip
    names = (
        "loads", "limits", "control", "seeds", "order_seed", "together", "window_s", "drain_s"
    )  # fmt: skip
    manifest |= {name: getattr(plan, name) for name in names}
    manifest["windows_s"] = {f"{load:g}": plan.window_of(load) for load in plan.loads}
    manifest["capacity"] = asdict(unit)
    lasting = [plan.window_of(job.load) for job in schedule(plan)]
    say(
        f"{len(lasting)} runs of {' and '.join(f'{s:.1f} s' for s in sorted({*lasting}))} at loads "
        f"{', '.join(f'{x:g}' for x in plan.loads)}, until {clock_in(sum(lasting))} at the "
        f"earliest -> {options.folder}"
    )
    return carry_out(plan, fleet, unit.capacity)


def _report(
    options: CompareOptions,
    logs: Path,
    manifest: dict[str, Any],
    unit: Calibration | None,
    played: Sequence[Played],
    losses: Sequence[Loss],
) -> bool:
    """Writes and prints it; whether anything failed."""
    objectives = options.objectives
    if objectives is None and unit is not None:
        objectives = unit.objectives(options.args.slo_multiple or 5.0)
    notes = list(dict.fromkeys(n for r in played if (n := note_of(r.server)) is not None))
    manifest |= {
        "ended": _utc(),
        "loadavg_after": machine()["loadavg"],
        "notes": notes,
        "warnings": [*manifest["warnings"], *notes],
        "order": [r.job.name for r in played],
        "servers": _described_servers(played),
        "workloads": {
            f"load{r.job.load:g}-seed{r.job.seed}": r.run.workload.sha256 for r in played
        },
        "objectives": None if objectives is None else asdict(objectives),
        "share": options.args.share,
    }
    comparison = judged(played, losses, unit, manifest)
    figures = write_comparison(options.folder, comparison)
    if losses:
        kept = shutil.copytree(logs, options.folder / "logs", dirs_exist_ok=True)
        for loss in losses:
            say(f"error: {loss.system} failed {loss.when}: {loss.reason}")
        say(f"the servers' logs are kept in {kept}")
    for warning in manifest["warnings"]:
        say(f"note: {warning}")
    with contextlib.suppress(OSError):  # the reader is gone
        report = f"{as_text(comparison)}\n\n{options.folder}/report.html"
        print(json.dumps(figures) if options.args.json else report)
    runs = (r for p in comparison.points for r in planned_runs(p.runs))
    return bool(losses) or any(r.verdict.word == FAILED for r in runs)


def _described_servers(played: Sequence[Played]) -> dict[str, Any]:
    """How each server described itself in its last response."""
    keys = ("mode", "policy", "model", "machine", "options")
    told = {
        r.job.system: {key: r.server[key] for key in keys if key in r.server}
        for r in played
        if r.server
    }
    for server in told.values():
        if isinstance(options := server.get("options"), dict):  # a folder of this run, gone by now
            server["options"] = {key: options[key] for key in options if key != "data_dir"}
    return told


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
