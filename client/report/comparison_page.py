"""The page of a comparison, and the summary on the terminal.

The result in words first, with the two things that the original showed: the servers' statistics
and latency by requested tokens. Then the loads; what is needed to judge them is folded away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.analysis.comparison.results import Calibration
from client.analysis.comparison.summary import Point, names_of, planned
from client.analysis.figures import E2E, TTFT
from client.analysis.gates import VALID
from client.analysis.metrics import FRONT
from client.report.comparison import Comparison
from client.report.page import Section, Table, write_page
from client.report.pictures.runs import latency, sizes, throughput
from client.report.sentences import sentences
from client.report.tables import (
    VOID,
    comparison_table,
    control_text,
    fairness_table,
    limit_table,
    pair_table,
    server_table,
)
from client.report.words import contained


def as_text(c: Comparison) -> str:
    """Table, sentences, control: it fits on a screen, the result at its end."""
    if not c.points:
        return "\n".join(_sentences(c))
    table = comparison_table(c.points, c.losses, short=True).as_text()
    marked = [f"{VOID} void, for the reason on the page"] * (VOID in table)
    return "\n\n".join(["\n".join([table, *marked]), "\n".join([*_controls(c), *_sentences(c)])])


def write_comparison_page(path: Path, c: Comparison) -> None:
    manifest = c.manifest
    gates = [(r.job.name, g.name, g.verdict, g.found) for r in c.results for g in r.verdict.gates]
    reading = [*_READING, contained(manifest["recipe"]["arrivals"])]
    write_page(
        path,
        Section(
            f"Batching compared: {manifest['model']}", _sentences(c),
            _server_table(c) if c.points else None,
            [sizes(c.points, _telling_load(c.points))] if c.points else (),
        ),
        [_configuration(manifest)],
        [*(loss.headline for loss in c.losses), *manifest["warnings"], *_doubtful(c)],
        [
            *(Section(f"Why {x.system} failed", text=x.reason, folded=True) for x in c.losses),
            *(_loads(c) if c.points else []),
            Section("How to read it", reading, folded=True),
            Section("Every run and its gates", table=Table(_GATES, gates, left=4), folded=True),
            Section("Manifest", text=json.dumps(manifest, indent=1), folded=True),
        ],
    )  # fmt: skip


def _sentences(c: Comparison) -> list[str]:
    if not c.points:
        return ["No runs could be compared."]
    return [] if c.found is None else sentences(c.found, c.points, _waits_s(c.manifest["servers"]))


def _waits_s(servers: dict[str, Any]) -> dict[str, float]:
    """How long the batches of static systems wait for others to join."""
    waits_ms = {
        name: told.get("options", {}).get("max_wait_ms")
        for name, told in servers.items()
        if told.get("mode") == "static"
    }
    return {name: ms / 1e3 for name, ms in waits_ms.items() if ms}


def _controls(c: Comparison) -> list[str]:
    return [] if c.found is None else [control_text(pair) for pair in c.found.controls]


def _server_table(c: Comparison) -> Table:
    load = _telling_load(c.points)
    columns = [
        (p.system, [r.server for r in planned(p.runs) if r.server])
        for p in c.points
        if p.load == load
    ]
    return server_table(
        [(name, stats) for name, stats in columns if stats], f"/stats at load {load:g}"
    )


def _telling_load(points: Sequence[Point]) -> float:
    """The most informative load: the highest that all systems ran and with which some keep up,
    otherwise the highest with which one does, otherwise the lowest."""
    loads = sorted({p.load for p in points}, reverse=True)
    sustained = [x for x in loads if any(p.load == x and p.verdict == VALID for p in points)]
    everyone = len(names_of(points))
    whole = [x for x in sustained if sum(p.load == x for p in points) == everyone]
    return (whole or sustained or loads[-1:])[0]


def _loads(c: Comparison) -> list[Section]:
    at = c.points
    unit = [] if c.calibration is None else [_capacity_line(c.calibration)]
    limits, pairs = (limit_table(c.found), pair_table(c.found)) if c.found else (None, None)
    voids = [(f"{p.load:g}", p.system, v.figure, v.reason, v.remedy) for p in at for v in p.voids]
    folded: tuple[tuple[str, list[str], Table | None], ...] = (
        ("Limits", [_LIMITS], limits),
        ("Ratios of latencies", [_PAIRS], pairs),
        ("Fairness by size", [_FAIRNESS], fairness_table(at)),
        (
            f"Figures marked {VOID}", [],
            Table(("load", "system", "figure", "why it is void", "remedy"), voids, left=5),
        ),
    )  # fmt: skip
    return [
        Section(
            "The loads", [*unit, *_controls(c)], comparison_table(at, c.losses),
            [throughput(at), latency(at, TTFT), latency(at, E2E)],
        ),
        *(Section(title, lines, table, folded=True)
          for title, lines, table in folded if table is not None and table.rows),
    ]  # fmt: skip


_LIMITS = (
    "Each system at the load where it delivered most; ratios with 95 % intervals, whose bootstrap "
    "over seeds chooses these loads again."
)
_PAIRS = (
    "Where both keep up, paired over seeds, 95 % intervals; below 1 is faster. p99 is of all seeds "
    "together, its interval from resampling seeds."
)
_FAIRNESS = "Mean slowdown (E2E / E2E alone) by output length; fair is the same for all."


def _doubtful(c: Comparison) -> list[str]:
    return [
        f"{p.system} at load {p.load:g} is {p.verdict}: {'; '.join(p.reasons)}"
        for p in c.points
        if not p.usable
    ]


def _capacity_line(c: Calibration) -> str:
    return (
        f"Loads are multiples of {c.capacity:.3g} requests/s, the rate of {c.baseline} with one "
        f"request at a time ({c.requests} requests, closed loop of one user). Alone, one takes "
        f"{c.isolated.base_s * 1e3:.3g} ms + {c.isolated.prompt_s * 1e3:.3g} ms a prompt token + "
        f"{c.isolated.output_s * 1e3:.3g} ms an output token."
    )


_GATES = ("run", "gate", "verdict", "found")
_READING = (
    "Throughput is output tokens delivered within the measured window per second. The window is "
    f"the same for all runs of a workload: it leaves out the first {FRONT:.0%} of a steady load "
    "and ends with the last intended arrival. Latencies run from the intended time of a request; "
    "one that was cut counts as infinitely late. Jain: the fairness of slowdown over five sizes; "
    "good: the share that met the objectives.",
    "SATURATED: the server could not keep up. Latencies reflect the length of the run; throughput "
    "is what it delivers under this load. Percentiles are of all seeds together and printed only "
    "if there are enough values. docs/measuring.md and docs/comparing.md define all figures.",
)


def _configuration(manifest: dict[str, Any]) -> str:
    recipe, machine = manifest["recipe"], manifest["machine"]
    gpus = machine.get("gpus") or ""
    lengths = manifest.get("windows_s") or {"": manifest.get("window_s")}
    known = sorted({length for length in lengths.values() if length is not None})
    runs = f"runs of {' and '.join(f'{s:.1f} s' for s in known)}; " if known else ""
    if runs:
        seeds = len(manifest["seeds"])
        runs = f"{seeds} seed{'' if seeds == 1 else 's'}, {runs}"
    return (
        f"{manifest['started']}, client on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB{gpus and f', {len(gpus)} x {gpus[0]}'}; "
        f"{manifest.get('cores', 'cores unknown')}; "
        f"commit {manifest['commit']}; {runs}"
        f"arrivals {recipe['arrivals']}, output tokens {recipe.get('output_tokens', 'its own')}"
    )
