"""A benchmark's options, and its report: a card for people, a line of JSON for machines, files."""

from __future__ import annotations

import json
import os
import platform
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.harness.turns import QUIET_CORES, ROUNDS
from client.load.machine import Company
from model import DTYPES

COMPANY = Company()  # from the start of the benchmark on


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


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that measured a figure."""

    cpu: str
    cores: int
    memory_gib: float
    gpu: str | None
    torch: str
    python: str

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, torch {self.torch}"


def machine() -> Machine:
    return Machine(
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        torch=torch.__version__,
        python=platform.python_version(),
    )


def cpu_name() -> str:
    """The processor from /proc/cpuinfo, with its family and model if the name is vague."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.processor())
    return f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def table(columns: str, rows: Iterable[Sequence[object]]) -> str:
    """In Markdown. ``columns`` are names with ``|`` between them; ``name:`` is aligned right."""
    names = [name.strip() for name in columns.split("|")]
    ruler = ["---:" if name.endswith(":") else "---" for name in names]
    lines = [[name.removesuffix(":") for name in names], ruler, *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def save(figures: dict[str, Any], card: str, out: Path | None, name: str) -> None:
    """Prints the card for people and, as the last line, JSON for machines; keeps both in ``out``.

    Keeps nothing if others used the machine meanwhile: SystemExit says so, after the card.
    """
    others = round(COMPANY.cores(), 3)
    figures = {
        "machine": asdict(machine()),
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
