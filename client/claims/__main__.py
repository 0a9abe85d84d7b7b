"""Puts published claims about scheduling policies to the test on this machine.

    python -m client.claims vtc                  one claim on the embedded model, in 2.5 minutes
    python -m client.claims --all                all of them, in 25 minutes
    python -m client.claims my_policies:Mine --as srpt,vtc,hrrn
                                                 your own policy, on the traffic of others' claims

Each policy runs beside its baseline on real servers, under the traffic of its paper's evaluation.
It prints the claim, the measured ratio with its 95 % interval, the smallest effect that this run
could have seen, and one of: seen, not seen, too close to call.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from client.claims.catalogue import CLAIMS
from client.claims.play import play
from client.claims.report import as_text, recorded, summary, write
from client.load.live import say
from client.load.machine import ROOT, Company
from client.load.servers.processes import ServerError, end_as_ctrl_c
from client.load.workers import WorkerError
from client.options.rules import declare

SECONDS, SECONDS_LARGER = 3.5, 5.0
OUT = ROOT / "results" / "claims"
_LEAST_SEEDS = 4


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m client.claims", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Options after -- go to each server, e.g. -- --dtype bfloat16",
    )  # fmt: skip
    told = f"of {', '.join(CLAIMS)}; with --as also your own, as module:Class"
    p.add_argument("policies", nargs="*", metavar="POLICY", help=told)
    values = {"seconds": SECONDS, "larger_s": SECONDS_LARGER, "least_seeds": _LEAST_SEEDS}
    declare(p, "claims", values, model="embedded", seeds=6, out=OUT)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    given, options = list(sys.argv[1:] if argv is None else argv), list[str]()
    if "--" in given:
        at = given.index("--")
        given, options = given[:at], given[at + 1 :]
    args = p.parse_args(given)
    likes = (vars(args)["as"] or "").split(",")
    policies = [*CLAIMS] if args.all else args.policies
    unknown = [name for name in (likes if any(likes) else policies) if name not in CLAIMS]
    if args.all == bool(args.policies):
        p.error("which claims? name policies, or --all")
    if unknown:
        p.error(
            f"there is no claim about {unknown[0]}; allowed: {', '.join(CLAIMS)}, or --as CLAIM"
        )
    if args.seeds < _LEAST_SEEDS:
        p.error(f"--seeds must be at least {_LEAST_SEEDS}, not {args.seeds}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        p.error(f"--out {args.out}: {error.strerror}")
    os.environ.setdefault("EB_POLICY_FOLDER", str(Path.cwd()))  # where servers find module:Class
    end_as_ctrl_c()
    return _play([(like or policy, policy) for like in likes for policy in policies], args, options)


def _play(asked: Sequence[tuple[str, str]], args: argparse.Namespace, options: list[str]) -> int:
    """Each claim with its policy."""
    began, others = time.monotonic(), Company()
    found: list[dict[str, Any]] = []
    status = 0
    for model, (name, policy) in product(args.model.split(","), asked):
        length_s = args.seconds or (SECONDS if model == "embedded" else SECONDS_LARGER)
        own = policy if policy == name else f"{policy}-as-{name}"  # so that each has a folder
        folder = args.out / _folder_of(model) / _folder_of(own)
        try:
            with tempfile.TemporaryDirectory(prefix="claims-logs-") as logs:
                claim = replace(CLAIMS[name], policy=policy)
                played = play(claim, model, length_s, args.seeds, Path(logs), options)
        except (ServerError, WorkerError) as error:
            say(f"{own}, {model}: {error}")
            status = 1
            continue
        except KeyboardInterrupt:
            say("interrupted")
            return _show(found, args) or 130
        found.append(write(folder, played))
        say(f"{as_text(found[-1])}\n\n{folder / 'picture.svg'}\n")
    took = (time.monotonic() - began) / 60
    say(f"took {took:.1f} minutes; others used {others.cores():.2f} of a core")
    return _show(found, args) or status


def _folder_of(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")


def _show(found: list[dict[str, Any]], args: argparse.Namespace) -> int:
    for model in {_folder_of(one["model"]) for one in found}:
        folder = args.out / model
        (folder / "claims.txt").write_text(summary(recorded(folder)).as_text() + "\n")
    print(json.dumps(found) if args.json else summary(found).as_text())
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
