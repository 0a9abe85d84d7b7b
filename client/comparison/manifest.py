"""The manifest of a comparison: what was asked for, on which machine, with which servers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from client.analysis.comparison.results import Calibration, Played
from client.comparison.schedule import Plan
from client.load.machine import commit, machine, versions
from client.options.compare import CompareOptions
from client.workloads.recipe import used


def manifest_of(options: CompareOptions) -> dict[str, Any]:
    """The manifest, as far as it is known before the runs."""
    return {
        "command": shlex.join(["./compare.sh", *sys.argv[1:]]),
        "started": utc(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "model": options.model,
        "systems": [c.name for c in options.systems],
        "recipe": used(options.recipe),
    }


def plan_figures(plan: Plan, calibration: Calibration) -> dict[str, Any]:
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


def described_servers(played: Sequence[Played]) -> dict[str, Any]:
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


def utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
