"""Puts published claims about scheduling policies to the test on this machine.

    python -m client.claims vtc                  one claim on the embedded model, in 2.5 minutes
    python -m client.claims --all                all of them, in 25 minutes
    python -m client.claims my_policies:Mine --as hrrn
                                                 your own policy, on the traffic of another's claim

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
from pathlib import Path
from typing import Any

from client.claims.catalogue import CLAIMS
from client.claims.page import fill
from client.claims.play import play
from client.claims.record import again, claim_of, recorded, write
from client.claims.report import as_text, summary
from client.load.live import say
from client.load.machine import ROOT, Company
from client.load.raw import RawError
from client.load.servers.processes import ServerError, end_as_ctrl_c
from client.load.workers import WorkerError
from client.workloads.workload_file import WorkloadError

SECONDS, SECONDS_LARGER = 3.5, 5.0
SEEDS = 6
OUT = ROOT / "results" / "claims"
_LEAST_SEEDS = 4


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m client.claims", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Options after -- go to each server, e.g. -- --dtype bfloat16",
    )  # fmt: skip
    p.add_argument(
        "policies", nargs="*", metavar="POLICY",
        help=f"of {', '.join(CLAIMS)}; with --as also your own, as module:Class",
    )  # fmt: skip
    p.add_argument("--all", action="store_true", help="all claims")
    p.add_argument(
        "--as", dest="like", choices=list(CLAIMS), metavar="CLAIM",
        help="the claim whose traffic, metric and baseline the policies are put to",
    )  # fmt: skip
    p.add_argument(
        "--model", default="embedded", help="as for server.sh; several with commas (%(default)s)"
    )
    p.add_argument(
        "--seconds", type=float,
        help=f"of work in a run ({SECONDS:g}; {SECONDS_LARGER:g} for other models than embedded)",
    )  # fmt: skip
    p.add_argument(
        "--seeds", type=int, default=SEEDS,
        help="workloads, each played to the baseline, the policy and the baseline (%(default)s; at "
        f"least {_LEAST_SEEDS})",
    )  # fmt: skip
    p.add_argument(
        "--out", type=Path, help="folder for results, pictures and runs (results/claims)"
    )
    p.add_argument(
        "--without-runs", action="store_true",
        help="keep what is concluded and drawn only; runs take a megabyte a claim",
    )  # fmt: skip
    p.add_argument(
        "--again", action="store_true",
        help="compute and draw again from the runs in --out; nothing is played",
    )  # fmt: skip
    p.add_argument(
        "--page", type=Path, metavar="FILE",
        help="fill the page's passages about measurements from --out; nothing is played",
    )  # fmt: skip
    p.add_argument("--list", action="store_true", help="print the claims; nothing is played")
    p.add_argument("--json", action="store_true", help="print JSON, for machines")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    p = parser()
    given = list(sys.argv[1:] if argv is None else argv)
    options = given[given.index("--") + 1 :] if "--" in given else []
    args = p.parse_args(given[: len(given) - len(options) - 1] if "--" in given else given)
    out: Path = args.out or OUT
    if args.list:
        print("\n\n".join(f"{c.policy}: {c.claim}\n    {c.source}" for c in CLAIMS.values()))
        return 0
    try:
        if args.page is not None:
            fill(args.page, out)
            return 0
        if args.again:
            return _again(args, out)
    except (RawError, WorkloadError, OSError) as error:
        say(f"error: {error}")
        return 1
    policies = [*CLAIMS] if args.all else args.policies
    unknown = [name for name in policies if name not in CLAIMS and not args.like]
    if args.all == bool(args.policies):
        p.error("which claims? name policies, or --all")
    if unknown:
        p.error(
            f"there is no claim about {unknown[0]}; allowed: {', '.join(CLAIMS)}, or --as CLAIM"
        )
    if args.seeds < _LEAST_SEEDS:
        p.error(f"--seeds must be at least {_LEAST_SEEDS}, not {args.seeds}")
    if args.seconds is not None and not args.seconds > 0:
        p.error(f"--seconds must be above 0, not {args.seconds}")
    os.environ.setdefault("EB_POLICY_FOLDER", str(Path.cwd()))  # where servers find module:Class
    end_as_ctrl_c()
    return _play(policies, args, out, options)


def _again(args: argparse.Namespace, out: Path) -> int:
    folders = [path.parent for path in sorted(out.rglob("about.json"))]
    named = {_folder_of(policy) for policy in args.policies}
    folders = [folder for folder in folders if not named or folder.name in named]
    if not folders:
        say(f"error: {out} has no runs of {', '.join(args.policies) or 'a claim'}")
        return 1
    return _show([again(folder) for folder in folders], args)


def _play(policies: Sequence[str], args: argparse.Namespace, out: Path, options: list[str]) -> int:
    began, others = time.monotonic(), Company()
    found: list[dict[str, Any]] = []
    status = 0
    for model in args.model.split(","):
        length_s = args.seconds or (SECONDS if model == "embedded" else SECONDS_LARGER)
        for policy in policies:
            claim = claim_of(policy, args.like)
            folder = out / _folder_of(model) / _folder_of(policy)
            try:
                with tempfile.TemporaryDirectory(prefix="claims-logs-") as logs:
                    played = play(claim, model, length_s, args.seeds, Path(logs), options)
            except (ServerError, WorkerError) as error:
                say(f"{policy}, {model}: {error}")
                status = 1
                continue
            except KeyboardInterrupt:
                say("interrupted")
                return _show(found, args) or 130
            found.append(write(folder, played, args.like, runs=not args.without_runs))
            say(f"{as_text(found[-1])}\n\n{folder / 'picture.svg'}\n")
    took = (time.monotonic() - began) / 60
    say(f"took {took:.1f} minutes; others used {others.cores():.2f} of a core")
    return _show(found, args) or status


def _folder_of(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")


def _show(found: list[dict[str, Any]], args: argparse.Namespace) -> int:
    out: Path = args.out or OUT
    for model in {_folder_of(one["model"]) for one in found}:
        (out / model / "claims.txt").write_text(summary(recorded(out / model)).as_text() + "\n")
    print(json.dumps(found) if args.json else summary(found).as_text())
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
