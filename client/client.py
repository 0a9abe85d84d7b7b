"""The load generator on the command line: one prompt, a hundred samples, or any workload file.

Runs as ``cd client && python client.py`` and as ``python -m client.client``. Reads the server's
IP and PORT from the environment or client/.env; any other server is a ``--target``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests
from dotenv import load_dotenv

if __package__ in (None, ""):  # run as a script: this folder is not the package's parent
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from client import servers
from client.experiment import adapted
from client.gates import FAILED, judge
from client.live import live_view, say
from client.metrics import measure, parse_objectives
from client.play import play
from client.recipe import Recipe, add_shape_options, make, recipe_from
from client.run_report import run_table, write_run_report
from client.selftest import self_test
from client.spec import SpecError
from client.target import Target, authorization, parse_target
from client.workload_file import Workload, WorkloadError, read_workload

DEFAULT_PORT = 8500
SELECTIONS = ("normal", "range", "buckets")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="client.py",
        description="Load a batching server and report what it did. Without options: 100 requests, "
        "about one a second, lengths normal(100, 50) clipped to 1..200, then the server's stats.",
    )
    simple = p.add_argument_group("simple use")
    simple.add_argument("--prompt", help="send this one prompt and print the completion")
    simple.add_argument("--numtokens", type=int, help="tokens to generate for --prompt (10)")
    simple.add_argument("--numsamples", type=int, default=100, help="number of requests (100)")
    simple.add_argument(
        "--wait", type=float, default=1.0, help="mean seconds between two requests (1.0)"
    )
    simple.add_argument(
        "--selection", choices=SELECTIONS, default=None,
        help="output lengths: normal (as above), range (values of --numtokens_range), buckets "
        "(5, 10, ... 145)",
    )  # fmt: skip
    simple.add_argument(
        "--numtokens_range", type=int, nargs="+", metavar="N", help="values to draw lengths from"
    )
    load = p.add_argument_group("load")
    load.add_argument(
        "--workload", type=Path, help="play this file (python -m client.workload make)"
    )
    load.add_argument("--rate", type=float, help="requests a second, instead of --wait")
    load.add_argument("--seed", type=int, default=0, help="of the workload (0)")
    load.add_argument(
        "--target", default=None,
        help="server, instead of IP and PORT: http://host:port, openai+http://...?model=m, "
        "openai-chat+http://..., tgi+http://...",
    )  # fmt: skip
    load.add_argument("--no-stream", action="store_true", help="ask for whole answers")
    load.add_argument(
        "--drain-s", type=float, help="cut what still runs so long after the last send (never)"
    )
    out = p.add_argument_group("results")
    out.add_argument("--slo", metavar="ttft:S,tpot:S,e2e:S", help="objectives in s, for goodput")
    out.add_argument("--out", type=Path, help="write report.html, pictures and raw data there")
    out.add_argument("--json", action="store_true", help="print all figures as JSON")
    out.add_argument(
        "--self-test", action="store_true", help="measure this client alone on a null server"
    )
    add_shape_options(p, Recipe())
    return p


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    load_dotenv(Path(__file__).resolve().parent / ".env")
    try:
        if args.self_test:
            return self_test(as_json=args.json)
        target = parse_target(args.target or _default_target())
        if args.prompt is not None:
            return _one(target, args.prompt, 10 if args.numtokens is None else args.numtokens)
        objectives = parse_objectives(args.slo) if args.slo else None
        workload = read_workload(args.workload) if args.workload else _made(args)
    except (SpecError, WorkloadError) as error:
        p.error(str(error))
    except servers.ServerError as error:
        say(f"error: {error}")
        return 1
    try:
        target = replace(target, stream=False) if args.no_stream else adapted(target)
    except requests.RequestException as error:
        say(f"error: {target.url} does not answer: {error}")
        return 1
    before = _handled(servers.settled_stats(target))
    with live_view(target.name, len(workload.requests)) as watch:
        run = play(workload, target, drain_s=args.drain_s, watch=watch)
    stats = servers.settled_stats(target)
    measured = measure(run, objectives)
    after = _handled(stats)
    known = before is not None and after is not None
    verdict = judge(run, measured, (after or 0) - (before or 0) if known else None)
    if args.out is not None:
        write_run_report(args.out, run, measured, verdict, stats)
    text, figures = run_table(run, measured, verdict)
    if args.json:
        print(json.dumps({**figures, "server": stats}))
    else:
        print(text)
        if stats is not None:
            print("\nThe server's own /stats:\n" + json.dumps(stats, indent=1))
    return 130 if run.interrupted else 1 if verdict.word == FAILED else 0


def _handled(stats: dict[str, Any] | None) -> int | None:
    """Tokens in the server's books; its window is not reset, others may be using it."""
    return None if stats is None else stats.get("total-tokens-handled")


def _default_target() -> str:
    host, port = os.getenv("IP", "localhost"), os.getenv("PORT", str(DEFAULT_PORT))
    return f"http://{host}:{port}"


def _made(args: argparse.Namespace) -> Workload:
    if not args.wait > 0:
        raise SpecError(f"--wait must be a number of seconds > 0, not {args.wait}")
    recipe = recipe_from(
        args, requests=args.numsamples, rate=1 / args.wait if args.rate is None else args.rate
    )
    values = args.numtokens_range
    selection = args.selection or ("range" if values else "normal")
    if selection == "range":
        values = values or [1, 25, 100]
        recipe = replace(recipe, output_tokens="choice:" + "/".join(map(str, values)))
    elif selection == "buckets":
        recipe = replace(recipe, output_tokens="choice:" + "/".join(map(str, range(5, 150, 5))))
    return make(recipe)


def _one(target: Target, prompt: str, tokens: int) -> int:
    """The original's single request: the completion on the terminal."""
    if not target.native:
        raise SpecError("--prompt speaks to this project's API only")
    body = {"prompt": prompt, "num_tokens": tokens}
    try:
        answer = requests.post(
            f"{target.url}/inference", json=body, headers=authorization(), timeout=600
        )
        data = answer.json()
    except (requests.RequestException, ValueError) as error:
        say(f"error: {target.url}: {error}")
        return 1
    if answer.status_code != 200:
        say(f"error: HTTP {answer.status_code}: {data.get('error', data)}")
        return 1
    print(data["completion"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
