"""``python -m client.workload make|describe``: workload files made, read and measured.

A thin command line: shapes live in ``recipe``, the file in ``workload_file``, measures in
``burstiness``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from client.load.http.target import parse_target
from client.load.servers.probing import served_words
from client.options.rules import add_shape_options, check, completed, declare, recipe_from
from client.report.tables import rendered
from client.workloads.burstiness import describe
from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload, read_workload, write_workload


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m client.workload", description="Makes and measures workload files."
    )
    commands = p.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="make a workload file")
    maker.add_argument("file", type=Path)
    declare(maker, "workload make", seed=0)
    add_shape_options(maker, Recipe())
    told = commands.add_parser("describe", help="measure burstiness and sizes")
    told.add_argument("file", type=Path)
    declare(told, "workload describe")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        if args.command == "make":
            print(_made(args))
        else:
            _describe(read_workload(args.file), as_json=args.json)
    except (SpecError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _made(args: argparse.Namespace) -> str:
    check(args)
    recipe = recipe_from(args, Recipe(), requests=args.requests, rate=args.rate)
    words = args.target and served_words(parse_target(args.target), recipe.prompts)
    workload = make(completed(recipe), words)
    write_workload(workload, args.file)
    note = workload.generator.get("trace")
    return (
        f"{args.file}: {len(workload.requests)} requests over {workload.duration_s:.3f} s, "
        f"sha256 {workload.sha256}" + (f" ({note})" if note else "")
    )


def _describe(workload: Workload, *, as_json: bool) -> None:
    if workload.users is not None:
        raise SpecError("a closed loop has no arrival times to describe")
    times = np.array([r.at_s for r in workload.requests], dtype=np.float64)
    try:
        found = describe(times, workload.duration_s)
    except ValueError as error:
        raise SpecError(str(error)) from None
    if as_json:
        print(json.dumps({"asked": workload.generator, "found": found}, default=float))
    else:
        asked, requests = workload.generator, workload.requests
        lengths = {
            "prompt": np.array([r.prompt_tokens for r in requests if r.prompt_tokens]),
            "output": np.array([r.output_tokens for r in requests]),
        }
        told = {**found, "asked": asked, "asked_json": json.dumps(asked), "lengths": lengths}
        print(rendered("workload.txt.j2", **told).rstrip())


if __name__ == "__main__":
    sys.exit(main())
