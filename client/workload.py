"""``python -m client.workload make|describe``: workload files made, read and measured.

A thin command line: shapes live in ``recipe``, the file in ``workload_file``, measures in
``burstiness``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from client.load.http.target import parse_target
from client.load.servers.probing import served_words
from client.options.rules import add_shape_options, check, completed, declare, recipe_from
from client.workloads.burstiness import describe
from client.workloads.recipe import Recipe, make
from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload, read_workload, write_workload

_MADE = """
--requests N: how many (100; of a trace: all of it)
--rate FACTOR: requests a second (1; of a trace: its own)
--seed SEED: same seed and numpy, same file (%(default)s)
--target TEXT: server whose tokens prompts are counted in (the embedded vocabulary's)
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m client.workload", description="Makes and measures workload files."
    )
    commands = p.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="make a workload file")
    maker.add_argument("file", type=Path)
    declare(maker, _MADE, seed=0)
    add_shape_options(maker, Recipe())
    told = commands.add_parser("describe", help="measure burstiness and sizes")
    told.add_argument("file", type=Path)
    declare(told, "--json: print the figures as JSON")
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
    output = np.array([r.output_tokens for r in workload.requests], dtype=np.float64)
    try:
        found = describe(times, workload.duration_s)
    except ValueError as error:
        raise SpecError(str(error)) from None
    if as_json:
        print(json.dumps({"asked": workload.generator, "found": asdict(found)}, default=float))
        return
    print(f"asked: {json.dumps(workload.generator)}")
    print(f"found: {found.n} requests over {found.duration_s:.3f} s, {found.rate:.4g} requests/s")
    print(f"gaps: CV {found.cv:.3f}, ties {found.ties:.2%}")
    for d in found.dispersion:
        print(
            f"windows of {d.window_s:.4g} s ({d.windows}): IDC {d.idc:.2f}, "
            f"peak/mean {d.peak_to_mean:.2f}, CV of the rate {d.cv_rate:.3f}"
        )
    print(f"CV of the rate in windows of D/100: {found.cv_rate:.3f}")
    print(
        f"output tokens: mean {output.mean():.1f}, sd {output.std():.1f}, "
        f"{output.min():.0f}..{output.max():.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
