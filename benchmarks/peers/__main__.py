"""Our engine and others at the same work: output tokens per second without HTTP, on a CPU.

    python -m benchmarks.peers --install        # makes the environments first, some gigabytes
    python -m benchmarks.peers                  # bfloat16 and float32
    python -m benchmarks.peers --peers vLLM --dtypes bfloat16 --requests 4
    python -m benchmarks.peers --model smollm2 --dtypes bfloat16 file \\
        --peers "OpenVINO GenAI" llama.cpp=file

The same weights, prompts and output lengths for all (see benchmarks/bare.py), greedy, no end
token, one process after the other, in turns over three rounds; ratios are taken within a round. A
peer that cannot be installed or run, or that gives a wrong number of tokens, is
reported with the reason. docs/results.md explains the table.
"""

from __future__ import annotations

import subprocess
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.bare import WORKS
from benchmarks.harness.report import file_name, options, report, table
from benchmarks.harness.turns import Ratio
from benchmarks.limits import describe, measure
from benchmarks.peers.environments import PEERS, Peer, install, python_of
from benchmarks.peers.results import (
    METRICS,
    NOBATCH,
    OURS,
    PeerResult,
    of_precision,
    settings,
    summary,
)
from benchmarks.peers.work import STORED, PeerWork, computing, once, run_ours, run_peer
from client.experiment import Experiment
from seams import LoadError

MODEL = "random:gpt2-medium"
NOBATCH_REQUESTS = 8
DTYPES = ["bfloat16", "float32"]
PRECISIONS = ("bfloat16", "float32", "int8", *STORED)


def installed(peers: Sequence[Peer], wanted: bool) -> dict[str, str]:
    """Environments that cannot be used, with the reason; installs them if requested."""
    reasons = {}
    for environment in dict.fromkeys(peer.environment for peer in peers):
        try:
            if wanted:
                install(environment)
            elif not python_of(environment).exists():
                reasons[environment] = "not installed (--install)"
        except (OSError, subprocess.CalledProcessError) as error:
            reasons[environment] = f"not installed: {error}"
    return reasons


def chosen(names: Sequence[str]) -> tuple[list[Peer], bool]:
    """The peers that are named, each with all its precisions or as `NAME=PRECISION,...`, and
    whether ours without batching is. Raises ArgumentTypeError."""
    known = {peer.name: peer for peer in PEERS}
    peers = []
    for text in names:
        name, _, only = text.partition("=")
        if text == NOBATCH:
            continue
        if name not in known:
            raise ArgumentTypeError(f"peer {name!r}, allowed: {'; '.join([NOBATCH, *known])}")
        dtypes = tuple(only.split(",")) if only else known[name].dtypes
        wrong = [dtype for dtype in dtypes if dtype not in known[name].dtypes]
        if wrong:
            offered = ", ".join(known[name].dtypes)
            raise ArgumentTypeError(f"{name} in {', '.join(wrong)}, allowed: {offered}")
        peers.append(replace(known[name], dtypes=dtypes))
    return peers, NOBATCH in names


def sides_of(
    work: PeerWork,
    dtypes: Sequence[str],
    peers: Sequence[Peer],
    nobatch: bool,
    missing: dict[str, str],
) -> dict[str, Callable[[int], PeerResult]]:
    """By precision and engine."""
    sides: dict[str, Callable[[int], PeerResult]] = {}
    for dtype in dtypes:
        runs = {OURS: partial(run_ours, work, OURS, "dynamic", dtype, None)}
        if nobatch:
            runs[NOBATCH] = partial(run_ours, work, NOBATCH, "nobatch", dtype, NOBATCH_REQUESTS)
        for peer in peers:
            if dtype in peer.dtypes:
                reason = missing.get(peer.environment)
                run = partial(run_peer, work, peer, dtype)
                runs[peer.name] = run if reason is None else partial(PeerResult, 0, error=reason)
        sides |= {f"{dtype} {name}": once(run) for name, run in runs.items()}
    return sides


def main(argv: Sequence[str] | None = None) -> None:
    names = [NOBATCH, *(peer.name for peer in PEERS)]
    parser = options(__doc__, model=MODEL, dtypes=DTYPES, known_dtypes=PRECISIONS)
    parser.add_argument(
        "--peers", nargs="*", default=names, metavar="PEER[=PRECISION,...]",
        help=f"any of: {'; '.join(names)}; a peer may be limited to some precisions",
    )  # fmt: skip
    parser.add_argument(
        "--work", default="decode", choices=WORKS,
        help="decode: short prompts; prefill: 512 + 16 tokens; mixed: lengths of conversations; "
        "single: one request alone",
    )  # fmt: skip
    parser.add_argument("--requests", type=int, help="only so many of the requests; default: all")
    parser.add_argument(
        "--install", action="store_true", help="make the environments under build/peers first"
    )
    args = parser.parse_args(argv)
    try:
        peers, with_nobatch = chosen(args.peers)
    except ArgumentTypeError as error:
        parser.error(str(error))
    missing = installed(peers, args.install)
    computed = sorted({computing(dtype) for dtype in args.dtypes})
    limits = measure(computed)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            work = PeerWork(args.model, args.work, args.requests, Path(scratch))
            work.prepare(args.dtypes)
        except LoadError as error:
            raise SystemExit(str(error)) from None
        sides = sides_of(work, args.dtypes, peers, with_nobatch, missing)
        ran = Experiment(sides, METRICS, OURS).run(args.rounds, "engines")
        limits = limits.or_better(measure(computed))
        found = [of_precision(ran, dtype) for dtype in args.dtypes]
        figures = list(summary(found, limits, work.least_seconds))
    also = [
        f"The machine {describe(limits)}.",
        table("dtype | figure | value", figures),
        table("dtype | engine | same tokens as ours | settings", settings(found)),
    ]
    failed = {side: r.error for side, rounds in ran.turns.items() for r in rounds if r.error}
    without = table("dtype and engine | why it has no figure", failed.items())
    if not any(one.turns for one in found):
        raise SystemExit(without)
    also += [without] * bool(failed)
    different = [
        *[file_name(args.model)] * (args.model != MODEL), *[args.work] * (args.work != "decode"),
        *(args.dtypes if args.dtypes != DTYPES else []),
    ]  # fmt: skip
    report(
        [one for one in found if one.turns],
        f"{args.model}, {args.work}", args.out,
        "-".join(["peers", *different]), "\n\n".join(also), model=args.model, work=args.work,
        limits=asdict(limits), left_out=failed,
        summary=[
            (dtype, name, asdict(value) if isinstance(value, Ratio) else value)
            for dtype, name, value in figures
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
