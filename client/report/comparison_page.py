"""The page of a comparison, and the summary on the terminal.

The result in words first, with the two things that the original showed: the servers' statistics
and latency by requested tokens. Then the loads; what is needed to judge them is folded away. The
page's own words are in ``comparison.html.j2``; it has no scripts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from client.analysis.comparison.summary import Point, names_of, planned
from client.analysis.figures import E2E, TTFT
from client.analysis.gates import SEVERITY, VALID
from client.analysis.metrics import FRONT
from client.report.comparison import Comparison
from client.report.pictures.runs import latency, sizes, throughput
from client.report.sentences import sentences
from client.report.tables import (
    VOID,
    Table,
    comparison_table,
    control_text,
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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    gates = [(r.job.name, g.name, g.verdict, g.found) for r in c.results for g in r.verdict.gates]
    page = environment.get_template("comparison.html.j2").render(
        c=c,
        words=SEVERITY,
        front=FRONT,
        sentences=_sentences(c),
        controls=_controls(c),
        contained=contained(c.manifest["recipe"]["arrivals"]),
        gates=Table(("run", "gate", "verdict", "found"), gates, left=4),
        manifest=json.dumps(c.manifest, indent=1),
        **(_of_points(c) if c.points else {}),
    )
    path.write_text(page, encoding="utf-8")


def _of_points(c: Comparison) -> dict[str, Any]:
    """Tables and pictures."""
    at, found, load = c.points, c.found, _telling_load(c.points)
    voids = [(f"{p.load:g}", p.system, v.figure, v.reason, v.remedy) for p in at for v in p.voids]
    return {
        "server": _server_table(c, load),
        "sizes": sizes(at, load),
        "loads": comparison_table(at, c.losses),
        "pictures": [throughput(at), latency(at, TTFT), latency(at, E2E)],
        "limits": limit_table(found) if found else None,
        "pairs": pair_table(found) if found else None,
        "voids": Table(("load", "system", "figure", "why it is void", "remedy"), voids, left=5),
    }


def _sentences(c: Comparison) -> list[str]:
    if not c.points:
        return ["No runs could be compared."]
    return [] if c.found is None else sentences(c.found, c.points, _waits_s(c.manifest["servers"]))


def _waits_s(servers: dict[str, Any]) -> dict[str, float]:
    """How long the batches of static systems wait for others to join."""
    return {
        name: wait_ms / 1e3
        for name, told in servers.items()
        if told.get("mode") == "static" and (wait_ms := told.get("options", {}).get("max_wait_ms"))
    }


def _controls(c: Comparison) -> list[str]:
    return [] if c.found is None else [control_text(pair) for pair in c.found.controls]


def _server_table(c: Comparison, load: float) -> Table:
    told = {
        p.system: [r.server for r in planned(p.runs) if r.server]
        for p in c.points
        if p.load == load
    }
    return server_table([x for x in told.items() if x[1]], f"/stats at load {load:g}")


def _telling_load(points: Sequence[Point]) -> float:
    """The most informative load: the highest that all systems ran and with which some keep up,
    otherwise the highest with which one does, otherwise the lowest."""
    loads = sorted({p.load for p in points}, reverse=True)
    sustained = [x for x in loads if any(p.load == x and p.verdict == VALID for p in points)]
    everyone = len(names_of(points))
    whole = [x for x in sustained if sum(p.load == x for p in points) == everyone]
    return (whole or sustained or loads[-1:])[0]
