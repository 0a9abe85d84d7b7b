"""A benchmark's options, and its report: a card for people, a line of JSON for machines, files."""

from __future__ import annotations

import json
import os
import platform
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch

from benchmarks.harness.turns import ratio_of
from client.experiment import Found
from client.load.machine import Company
from client.report.words import number
from model import DTYPES

COMPANY = Company()  # from the start of the benchmark on
ROUNDS = 3
# Used by others; with more, nothing is recorded. On a virtual machine whose hypervisor always takes
# more, say so with the variable of this name. Each recording states what others used.
QUIET_CORES = float(os.environ.get("QUIET_CORES", "0.05"))


def file_name(model: str) -> str:
    """Of what `--model` names."""
    return model.replace(":", "-").replace("/", "-")


def options(
    doc: str | None, *, rounds: int | None = ROUNDS, model: str | None = None,
    dtype: str | None = None, dtypes: Sequence[str] | None = None,
    known_dtypes: Iterable[str] = DTYPES,
) -> ArgumentParser:  # fmt: skip
    """``--out``, and the other shared options as far as they have a default here."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and Markdown")
    known, default = list(known_dtypes), "default: %(default)s"
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=default)
    if model is not None:
        parser.add_argument("--model", default=model, help=default)
    if dtype is not None:
        parser.add_argument("--dtype", default=dtype, choices=known, help=default)
    if dtypes is not None:
        parser.add_argument("--dtypes", nargs="+", default=dtypes, choices=known, help=default)
    return parser


def machine() -> dict[str, Any]:
    """The machine that measures a figure."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def here() -> str:
    """In words."""
    return "{cpu}, {cores} cores, torch {torch}".format(**machine())


def cpu_name() -> str:
    """With its family and model, since the name may be vague."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    of = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = of.get("model name", platform.processor())
    return f"{name} (family {of.get('cpu family', '?')}, model {of.get('model', '?')})"


def rows_of(found: Found) -> list[dict[str, Any]]:
    """A side each, for machines: the figures of all rounds, and the ratio."""
    of = found.experiment
    return [
        {
            **of.of,
            "side": side,
            **{metric: found.figures(side, metric) for metric in of.metrics},
            "ratio": asdict(ratio_of(found, side)),
        }
        for side in found.turns
    ]


def table_of(found: Sequence[Found]) -> str:
    """A row a side: the median of each metric over the rounds, and the ratio of the first."""
    first = found[0].experiment
    metrics = [f"{metric.replace('_per_', '/').replace('_', ' ')}:" for metric in first.metrics]
    columns = [*first.of, "side", *metrics, f"to {first.to}:"]
    rows = [
        (
            *one.experiment.of.values(), side,
            *(number(median(one.figures(side, metric))) for metric in first.metrics),
            "" if side == one.experiment.to else format(ratio_of(one, side), ".3f"),
        )
        for one in found
        for side in one.experiment.sides
    ]  # fmt: skip
    return table(" | ".join(columns), rows)


def table(columns: str, rows: Iterable[Sequence[object]]) -> str:
    """In Markdown. ``columns`` are names with ``|`` between them; ``name:`` is aligned right."""
    names = [name.strip() for name in columns.split("|")]
    ruler = ["---:" if name.endswith(":") else "---" for name in names]
    lines = [[name.removesuffix(":") for name in names], ruler, *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def report(
    found: Sequence[Found], title: str, out: Path | None, name: str, also: str = "", **more: Any
) -> None:
    """Experiments with the same columns, as one table and one list of rows; ``also`` stands below
    the table, and ``more`` beside the rows. Otherwise as `save`."""
    card = f"{title}, on {here()}\n\n{table_of(found)}{also and f'{chr(10) * 2}{also}'}"
    save({**more, "results": [row for one in found for row in rows_of(one)]}, card, out, name)


def save(figures: dict[str, Any], card: str, out: Path | None, name: str) -> None:
    """Prints the card for people and, as the last line, JSON for machines; keeps both in ``out``.

    Keeps nothing if others used the machine meanwhile: SystemExit says so, after the card.
    """
    others = round(COMPANY.cores(), 3)
    figures = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "cores_of_others": others,
        **figures,
    }
    print(card)
    busy = others > QUIET_CORES
    if out is not None and not busy:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
        (out / f"{name}.md").write_text(card + "\n")
    print(json.dumps(figures))
    if out is not None and busy:
        raise SystemExit(
            f"not recorded in {out}: other processes used {others:.2f} of a core, "
            f"{QUIET_CORES:g} is allowed"
        )
