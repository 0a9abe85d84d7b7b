"""The page of a comparison, and the summary on the terminal.

The result in words first, with the two things that the original showed: the servers' statistics
and latency by requested tokens. Then the loads; what is needed to judge them is folded away.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.analysis.comparison.headline import PredictedGain
from client.analysis.comparison.results import Calibration, Result
from client.analysis.comparison.summary import final, names_of
from client.analysis.figures import E2E, TTFT
from client.analysis.metrics import FRONT
from client.load.servers.stats import described
from client.report.comparison import Comparison
from client.report.html.chart import Chart
from client.report.html.page import Fold, Lead, Section, Selector, Table, write_page
from client.report.pictures import comparison as pictures
from client.report.pictures.gantt import gantt
from client.report.tables import (
    VOID,
    comparison_table,
    control_text,
    fairness_table,
    limit_table,
    pair_table,
    ratio_text,
    server_table,
    short_table,
)
from client.report.words import contained, sentences


def as_text(c: Comparison) -> str:
    """Table, sentences, control: it fits on a screen, the result at its end."""
    if not c.points:
        return "\n".join(_sentences(c))
    table = short_table(c.points, c.losses).as_text()
    marked = [f"{VOID} void, for the reason on the page"] * (VOID in table)
    return "\n\n".join(["\n".join([table, *marked]), "\n".join([*_controls(c), *_sentences(c)])])


def write_comparison_page(path: Path, c: Comparison) -> None:
    manifest = c.manifest
    reading = [*_READING, contained(manifest["recipe"]["arrivals"])]
    write_page(
        path,
        f"Batching compared: {manifest['model']}",
        Lead(
            _sentences(c),
            _server_table(c) if c.points else None,
            _over_loads(c, lambda load: [pictures.by_tokens(c.points, c.results, load)])
            if c.points else None,
            [*_late(c), _configuration(manifest)],
        ),
        [*(loss.headline for loss in c.losses), *manifest["warnings"], *_doubtful(c)],
        [
            *([Section("Servers that failed", folds=[Fold(x.headline, x.reason) for x in c.losses])]
              if c.losses else []),
            *(_loads(c) if c.points else []),
            Section("How to read it", reading, folded=True),
            Section("Every run and its gates", folds=[_gates(r) for r in c.results], folded=True),
            Section("Servers", _servers(manifest), folded=True),
            Section("Manifest", folds=[Fold("all of it", json.dumps(manifest, indent=1))],
                    folded=True),
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
    load = pictures.telling_load(c.points)
    runs = [r for r in final(c.results) if r.job.load == load and r.server]
    columns = [
        (name, [r.server for r in runs if r.job.system == name and r.server])
        for name in names_of(c.points)
    ]
    return server_table(
        [(name, stats) for name, stats in columns if stats], f"/stats at load {load:g}"
    )


def _over_loads(c: Comparison, charts: Any) -> Selector:
    loads = sorted({p.load for p in c.points})
    made: list[tuple[str, Sequence[Chart]]] = [(f"{load:g}", charts(load)) for load in loads]
    return Selector("load", made, loads.index(pictures.telling_load(c.points)))


def _loads(c: Comparison) -> list[Section]:
    at, results = c.points, c.results
    made = [
        Section(
            "The loads",
            [*([] if c.calibration is None else [_capacity_line(c.calibration)]), *_controls(c)],
            comparison_table(at, c.losses),
            [
                pictures.throughput(at),
                pictures.latency(at, TTFT),
                pictures.latency(at, E2E),
            ],
        ),
        Section(
            "The same requests in each mode",
            ["Grey: waiting. Orange: prefill, light orange a chunk of it. Blue: decode. Light "
             "blue: done, but held back until the batch is. Violet: paused. A red end: cut. "
             "Consecutive requests from the middle of one run."],
            selector=_over_loads(c, lambda load: gantt(at, results, load, c.rows)),
        ),
    ]  # fmt: skip
    if c.found is not None and (limits := limit_table(c.found)).rows:
        line = "Each system at the load where it delivered most; ratios with 95 % intervals, "
        line += "whose bootstrap over seeds chooses these loads again."
        made.append(Section("Limits", [line, *_predicted(c.predicted)], limits, folded=True))
    if c.found is not None and (pairs := pair_table(c.found)).rows:
        line = (
            "Where both keep up, paired over seeds, 95 % intervals; below 1 is faster. p99 is of "
        )
        line += "all seeds together, its interval from resampling seeds."
        made.append(Section("Ratios of latencies", [line], pairs, folded=True))
    if (fair := fairness_table(at)).rows:
        line = "Mean slowdown (E2E / E2E alone) by output length; fair is the same for all."
        made.append(Section("Fairness by size", [line], fair, folded=True))
    over_time = _over_loads(c, lambda load: pictures.over_time(at, results, load))
    made.append(Section("One run over time", selector=over_time, folded=True))
    if voids := _voids(c):
        rows = [(f"{p.load:g}", p.system, v.figure, v.reason, v.remedy) for p, v in voids]
        head = ("load", "system", "figure", "why it is void", "remedy")
        made.append(Section("Figures marked " + VOID, table=Table(head, rows, left=5), folded=True))
    return made


def _voids(c: Comparison) -> list[tuple[Any, Any]]:
    return [(p, void) for p in c.points for void in p.voids]


def _doubtful(c: Comparison) -> list[str]:
    return [
        f"{p.system} at load {p.load:g} is {p.verdict}: {'; '.join(p.reasons)}"
        for p in c.points
        if not p.usable
    ]


def _late(c: Comparison) -> list[str]:
    """A note, not a warning: no ratio uses a void figure."""
    if not (voids := _voids(c)):
        return []
    return [
        f"{len(voids)} figures are void: they are listed below, with reason and remedy, and marked "
        f"{VOID} in tables."
    ]


def _capacity_line(c: Calibration) -> str:
    return (
        f"Loads are multiples of {c.capacity:.3g} requests/s, the rate of {c.baseline} with one "
        f"request at a time ({c.requests} requests, closed loop of one user). Alone, one takes "
        f"{c.isolated.base_s * 1e3:.3g} ms + {c.isolated.prompt_s * 1e3:.3g} ms a prompt token + "
        f"{c.isolated.output_s * 1e3:.3g} ms an output token."
    )


def _predicted(predicted: PredictedGain | None) -> list[str]:
    if predicted is None:
        return []
    found = ratio_text(predicted.measured) if predicted.measured else "nothing usable"
    return [
        f"From length variance alone (E[max of B]/E[out], B = {predicted.batch:.1f} as static "
        f"batched at load {predicted.load:g}) dynamic should give {predicted.predicted:.2f} "
        f"times static's throughput; measured {found}."
    ]


_READING = (
    "Throughput is output tokens delivered within the measured window per second. The window is "
    f"the same for all runs of a workload: it leaves out the first {FRONT:.0%} of a steady load "
    "and ends with the last intended arrival, before the drain. /stats reports busy throughput.",
    "Latencies run from the intended time of the request. TTFT: to its first token. TPOT: (last "
    "token - first token)/(tokens - 1). E2E: to the end of the response. Failed requests are "
    "excluded; requests that were cut before their end count as infinitely late.",
    "SATURATED: the server could not keep up. Latencies reflect the length of the run; throughput "
    "is what it delivers under this load.",
    "Percentiles are of all seeds together and printed only if there are enough values. Ratios of "
    "medians are paired: the same workload file on both sides, mean log-ratio over seeds, "
    "Student-t interval; those of p99 pool the requests of all seeds, which are resampled. "
    "Throughput is compared at the limits, each at the load where it was most.",
    "Jain: the fairness of slowdown (E2E / E2E alone) over five size buckets; 1 if a server slows "
    "all sizes equally. good: the share of the requests that met the objectives.",
    "Loads are open loop: a slow server receives no fewer requests. Compared runs are back to "
    "back, in reverse order from seed to seed.",
)


def _gates(result: Result) -> Fold:
    m = result.measured
    width = max(len(g.name) for g in result.verdict.gates)
    gates = "\n".join(
        f"{g.name.ljust(width)}  {g.verdict:14}  {g.found}" for g in result.verdict.gates
    )
    head = f"{result.job.name}: {result.verdict.word}"
    warm = f"warm-up cut {m.warm_up_s:.2f} s of {m.warm_up_s + m.window_s:.2f} s"
    return Fold(head, f"{gates}\n{warm}; tokens: {result.run.counted}")


def _configuration(manifest: dict[str, Any]) -> str:
    recipe = manifest["recipe"]
    lengths = manifest.get("windows_s") or {"": manifest.get("window_s")}
    known = sorted({length for length in lengths.values() if length is not None})
    runs = f"runs of {' and '.join(f'{s:.1f} s' for s in known)}; " if known else ""
    if runs:
        seeds = len(manifest["seeds"])
        runs = f"{seeds} seed{'' if seeds == 1 else 's'}, {runs}"
    return (
        f"{manifest['started']}, client on {_hardware(manifest['machine'])}; "
        f"{manifest.get('cores', 'cores unknown')}; "
        f"commit {manifest['commit']}; {runs}"
        f"arrivals {recipe['arrivals']}, output tokens {recipe.get('output_tokens', 'its own')}"
    )


def _hardware(machine: dict[str, Any]) -> str:
    gpus = machine.get("gpus")
    text = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    return text + (f", {len(gpus)} x {gpus[0]}" if gpus else "")


def _servers(manifest: dict[str, Any]) -> list[str]:
    """How each system describes itself; a client's machine need not be its server's."""
    said = manifest["servers"]
    return [
        f"{name}: {described(said.get(name)) or 'unknown, since no /stats were read'}"
        for name in manifest["systems"]
    ]
