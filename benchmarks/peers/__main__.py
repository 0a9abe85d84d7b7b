"""Our engine and others at the same work: output tokens per second without HTTP, on a CPU.

    python -m benchmarks.peers --install        # makes the environments first, some gigabytes
    python -m benchmarks.peers                  # bfloat16 and float32
    python -m benchmarks.peers --peers vLLM --dtypes bfloat16 --requests 4
    python -m benchmarks.peers --model smollm2 --dtypes bfloat16 file \\
        --peers "OpenVINO GenAI" llama.cpp=file

The same weights, prompts and output lengths for all (see benchmarks/bare.py), greedy, no end
token, one process after the other, in turns over three rounds; ratios are taken within a round. A
peer that cannot be installed or run, or that gives a wrong number of tokens, is
reported with the reason. docs/peers.md explains the table.
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
from benchmarks.harness.report import file_name, options, save
from benchmarks.harness.turns import Ratio, in_turns
from benchmarks.limits import measure
from benchmarks.peers.environments import PEERS, Peer, install, python_of
from benchmarks.peers.results import NOBATCH, OURS, Result, card, for_report, summary
from benchmarks.peers.work import STORED, Work, computing, once, run_ours, run_peer
from models.weights.source import CheckpointError

MODEL = "random:gpt2-medium"
NOBATCH_REQUESTS = 8
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


def main(argv: Sequence[str] | None = None) -> None:
    names = [NOBATCH, *(peer.name for peer in PEERS)]
    parser = options(__doc__, model=MODEL, dtypes=["bfloat16", "float32"], known_dtypes=PRECISIONS)
    parser.add_argument(
        "--peers",
        nargs="*",
        default=names,
        metavar="PEER[=PRECISION,...]",
        help=f"any of: {'; '.join(names)}; a peer may be limited to some precisions",
    )
    parser.add_argument(
        "--work",
        default="decode",
        choices=WORKS,
        help="decode: short prompts; prefill: 512 + 16 tokens; mixed: lengths of conversations; "
        "single: one request alone",
    )
    parser.add_argument(
        "--sampled", action="store_true", help="temperature 0.8 and top_p 0.9 instead of greedy"
    )
    parser.add_argument("--requests", type=int, help="only so many of the requests; default: all")
    parser.add_argument(
        "--install", action="store_true", help="make the environments under build/peers first"
    )
    args = parser.parse_args(argv)

    try:
        peers, with_nobatch = chosen(args.peers)
    except ArgumentTypeError as error:
        parser.error(str(error))
    different = [file_name(args.model)] * (args.model != MODEL)
    different += [args.work] * (args.work != parser.get_default("work")) + [
        "sampled"
    ] * args.sampled
    different += args.dtypes if args.dtypes != parser.get_default("dtypes") else []
    missing = installed(peers, args.install)
    computed = sorted({computing(dtype) for dtype in args.dtypes})
    limits = measure(computed)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            work = Work(args.model, args.work, args.requests, args.sampled, Path(scratch))
            work.prepare(args.dtypes)
        except CheckpointError as error:
            raise SystemExit(str(error)) from None
        sides: dict[tuple[str, str], Callable[[], Result]] = {}
        for dtype in args.dtypes:
            sides[dtype, OURS] = once(partial(run_ours, work, OURS, "dynamic", dtype, None))
            if with_nobatch:
                run = partial(run_ours, work, NOBATCH, "nobatch", dtype, NOBATCH_REQUESTS)
                sides[dtype, NOBATCH] = once(run)
            for peer in peers:
                if dtype not in peer.dtypes:
                    continue
                if (reason := missing.get(peer.environment)) is not None:
                    run = partial(Result, 0, error=reason)
                else:
                    run = partial(run_peer, work, peer, dtype)
                sides[dtype, peer.name] = once(run)
        results = in_turns(sides, args.rounds, "engines")
        limits = limits.or_better(measure(computed))
        ends = summary(results, limits, work.least_seconds)
    report = {
        "model": args.model,
        "work": args.work,
        "sampled": args.sampled,
        "limits": asdict(limits),
        "results": [for_report(*side, r) for side, rounds in results.items() for r in rounds],
        "summary": {
            dtype: {
                name: asdict(value) if isinstance(value, Ratio) else value
                for name, value in figures.items()
            }
            for dtype, figures in ends.items()
        },
    }
    save(
        report,
        card(f"{args.model}, {args.work}{', sampled' * args.sampled}", results, limits, ends),
        args.out,
        "-".join(["peers", *different]),
    )


if __name__ == "__main__":
    main()
